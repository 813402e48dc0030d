"""A model as an exportable graph, from stored images to the outputs of `ducats predict`.

ONNX has neither digamma nor log1p. The uncertainties do not need digamma: ``ducats.dirichlet.kernels``
computes them from its recurrence and its asymptotic series. They do need log1p, which exporters write as
``log(1 + x)``; for an alpha of 1e8, U_dis would then be three times too high. ``AccurateLog1p`` replaces it.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ducats.data.views import interpolation_weights
from ducats.deploy.preprocessing import Preprocessing
from ducats.dirichlet import kernels
from ducats.models import EvidentialModel
from ducats.models.frozen_norm import FrozenNorm
from ducats.models.output import Output
from ducats.models.upsampling import bilinear_weights

ONNX_OUTPUTS = ("probability", "u_dis", "u_data", "label")


def accurate_log1p(x: Tensor) -> Tensor:
    """Compute ``ln(1 + x)``, x >= 0, from log; relative error < 3e-7.

    The rounding error of u = 1 + x cancels in ``ln(u) x / (u - 1)``. Few operations: each one takes time to
    export.
    """
    u = 1 + x
    return torch.where(u == 1, x, torch.log(u) * (x / (u - 1)))


class AccurateLog1p(TorchFunctionMode):
    """Replace every log1p by ``accurate_log1p``, also while a model is traced."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace log1p and call everything else."""
        if func in (torch.log1p, torch.Tensor.log1p, torch.special.log1p):
            return accurate_log1p(args[0])
        if func in (torch.log1p_, torch.Tensor.log1p_):
            return args[0].copy_(accurate_log1p(args[0]))
        return func(*args, **(kwargs or {}))


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
            probe_output = self.model(torch.zeros(1, channels, *size))
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


class StoredImageGraph(nn.Module):
    """Map stored images, uint8 ``(N, channels, height, width)``, to the outputs of an ``InferenceGraph``."""

    row_weights: Tensor
    column_weights: Tensor

    def __init__(self, inference: InferenceGraph, preprocess: Preprocessing) -> None:
        super().__init__()
        # Not `graph`, an attribute of traced modules.
        self.inference, self.preprocess = inference, preprocess
        if preprocess.resizes_again:
            # As `F.interpolate(..., mode="bilinear", antialias=True)`, which not every runtime has.
            for name, stored, size in zip(
                ("row_weights", "column_weights"), preprocess.stored_size, preprocess.size, strict=True
            ):
                start, length = torch.zeros(1), torch.tensor([float(stored)])
                position = torch.arange(size, dtype=torch.float32)[None]
                weights = interpolation_weights(position, start, length, stored, crop_first=True)
                self.register_buffer(name, weights[0], persistent=False)

    def view(self, pixels: Tensor) -> Tensor:
        """Return the images that the model gets, float32 in [0, 1]."""
        if self.preprocess.crop_top_left is not None:
            (top, left), (height, width) = self.preprocess.crop_top_left, self.preprocess.size
            pixels = pixels[..., top : top + height, left : left + width]
        images = pixels.float() / 255
        if self.preprocess.resizes_again:
            images = self.row_weights @ images @ self.column_weights.T
        return images

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the tensors named in ``ONNX_OUTPUTS``."""
        outputs: tuple[Tensor, Tensor, Tensor, Tensor] = self.inference(self.view(pixels))
        return outputs
