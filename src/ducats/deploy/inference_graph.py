"""A model as an exportable graph, from images to the outputs of `ducats predict`.

ONNX has neither digamma nor log1p. The uncertainties do not need digamma: ``ducats.dirichlet.kernels``
computes them from its recurrence and its asymptotic series. They do need log1p, which exporters write as
``log(1 + x)``; for an alpha of 1e8, U_dis would then be three times too high. ``log1p_series`` replaces it.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from ducats.dirichlet import kernels
from ducats.models import EvidentialModel
from ducats.models.frozen_norm import FrozenNorm
from ducats.models.output import Output
from ducats.models.upsampling import bilinear_weights

ONNX_OUTPUTS = ("probability", "u_dis", "u_data", "label")
_ATANH = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)  # atanh(s) = s (1 + s^2/3 + s^4/5 + ...)
_SERIES_LIMIT = 0.5  # below it, the truncation error is smaller than float32 rounding


def log1p_series(x: Tensor) -> Tensor:
    """Compute ``ln(1 + x)``, x >= 0, as ``2 atanh(x / (2 + x))`` for small x; relative error < 2e-7."""
    s = x / (2 + x)
    square = s * s
    tail = torch.zeros_like(s)
    for c in reversed(_ATANH):
        tail = (tail + c) * square
    return torch.where(x < _SERIES_LIMIT, 2 * s * (1 + tail), torch.log(1 + x))


class _Affine(nn.Module):
    """A frozen norm as a fixed scale and shift."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: FrozenNorm) -> None:
        super().__init__()
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        self.register_buffer("scale", scale.reshape(-1, 1, 1), persistent=False)
        shift = norm.bias - norm.running_mean * scale
        self.register_buffer("shift", shift.reshape(-1, 1, 1), persistent=False)
        self.activation = norm.after

    def forward(self, feature_maps: Tensor) -> Tensor:
        """Transform feature maps ``(N, C, H, W)``."""
        normed: Tensor = self.activation(torch.addcmul(self.shift, feature_maps, self.scale))
        return normed


def _fold_frozen_norms(model: EvidentialModel) -> EvidentialModel:
    """Return a copy whose frozen norms cache nothing between calls, which a traced graph cannot express."""
    model = deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, FrozenNorm):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _Affine(module))
    return model


class InferenceGraph(nn.Module):
    """Map images in [0, 1] of one size to probability, u_dis, u_data and label.

    In segmentation, logits are interpolated to the size of the images before the evidence function.

    Args:
        size: height and width of the images.
        flip: average probabilities and uncertainties with those of the mirror image (segmentation only).
    """

    row_weights: Tensor
    column_weights: Tensor

    def __init__(
        self, model: EvidentialModel, size: tuple[int, int], channels: int, *, flip: bool = False
    ) -> None:
        super().__init__()
        self.model, self.flip = _fold_frozen_norms(model), flip
        self.eval()
        with torch.no_grad():
            probe_output = self.model(torch.zeros(2, channels, *size))
        self.per_pixel = probe_output.size is not None
        if self.per_pixel:
            # Computed here: tensors have no values during tracing, and `bilinear_weights` caches its results.
            for name, fine, coarse in zip(
                ("row_weights", "column_weights"), size, probe_output.z.shape[-2:], strict=True
            ):
                interpolation = bilinear_weights(fine, coarse, torch.float32, torch.device("cpu"))
                self.register_buffer(name, interpolation.clone(), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tensors named in ``ONNX_OUTPUTS``: ``(N, C, ...)``, then ``(N, ...)`` each."""
        probability, u_dis, u_data = self._outputs(self.model(images))
        if self.flip:
            mirror = self._outputs(self.model(images.flip(-1)))
            averaged = [
                (a + b.flip(-1)) / 2 for a, b in zip((probability, u_dis, u_data), mirror, strict=True)
            ]
            probability, u_dis, u_data = averaged
        return probability, u_dis, u_data, probability.argmax(1)

    def _outputs(self, output: Output) -> tuple[Tensor, Tensor, Tensor]:
        z = output.z
        if self.per_pixel:
            z = output.evidence(self.row_weights @ z @ self.column_weights.T)
        flat_z = z.movedim(1, -1)
        shape = flat_z.shape[:-1]
        data, distribution = kernels.uncertainties_kernel(
            flat_z.reshape(-1, z.shape[1]), needs_grad=False
        ).values
        return z.softmax(1), distribution.reshape(shape), data.reshape(shape)
