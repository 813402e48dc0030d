"""A model as one graph of plain arithmetic: images in, what `ducats predict` says of them out.

ONNX has neither digamma nor log1p. The uncertainties need no digamma, see ``ducats._special``: they are made
of its recurrence and its asymptotic series. What they do need is ``log1p``, which exporters write as
``log(1 + x)``: for an alpha of 1e8, U_dis would be three times too high. Here it is a series, too.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from ducats import _special
from ducats.grid import weights
from ducats.models import Evidential
from ducats.models.frozen import FrozenNorm
from ducats.rows import Output

OUTPUTS = ("probability", "u_dis", "u_data", "label")
_ATANH = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)  # atanh(s) = s (1 + s^2/3 + s^4/5 + ...)
_KNEE = 0.5  # up to here the series is cut off below float32's rounding


def log1p(x: Tensor) -> Tensor:
    """``ln(1 + x)`` of x >= 0 by ``2 atanh(x / (2 + x))`` where x is small, relative error below 2e-7."""
    s = x / (2 + x)
    square = s * s
    tail = torch.zeros_like(s)
    for c in reversed(_ATANH):
        tail = (tail + c) * square
    return torch.where(x < _KNEE, 2 * s * (1 + tail), torch.log(1 + x))


class _Affine(nn.Module):
    """A frozen norm as it is in a file: scale and shift, computed once and for all."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: FrozenNorm) -> None:
        super().__init__()
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        self.register_buffer("scale", scale.reshape(-1, 1, 1), persistent=False)
        shift = norm.bias - norm.running_mean * scale
        self.register_buffer("shift", shift.reshape(-1, 1, 1), persistent=False)
        self.after = norm.after

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``(N, C, H, W)`` to the same."""
        normed: Tensor = self.after(torch.addcmul(self.shift, maps, self.scale))
        return normed


def _folded(model: Evidential) -> Evidential:
    """A copy whose frozen norms keep no numbers between calls: a recorded graph cannot follow that."""
    model = deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, FrozenNorm):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _Affine(module))
    return model


class Graph(nn.Module):
    """Images in [0, 1] of one size to probability, u_dis, u_data and label.

    Of pixels, logits are interpolated to the images' size, and evidence comes last; where the run was
    measured with flip averaging, probabilities and uncertainties are means of both.

    Args:
        model: normalises images itself.
        size: height and width of the images.
        channels: of the images.
        flip: average with the mirror image, of pixels.
    """

    down: Tensor
    across: Tensor

    def __init__(
        self, model: Evidential, size: tuple[int, int], channels: int, *, flip: bool = False
    ) -> None:
        super().__init__()
        self.model, self.flip = _folded(model), flip
        self.eval()
        with torch.no_grad():
            one = self.model(torch.zeros(2, channels, *size))
        self.of_pixels = one.size is not None
        if self.of_pixels:
            # Made here: while a graph is recorded nothing has a value, and `weights` keeps what it makes.
            for name, fine, coarse in zip(("down", "across"), size, one.z.shape[-2:], strict=True):
                table = weights(fine, coarse, torch.float32, torch.device("cpu"))
                self.register_buffer(name, table.clone(), persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What ``OUTPUTS`` names: ``(N, C, ...)``, then ``(N, ...)`` each."""
        probability, u_dis, u_data = self._of(self.model(images))
        if self.flip:
            mirror = self._of(self.model(images.flip(-1)))
            means = [(a + b.flip(-1)) / 2 for a, b in zip((probability, u_dis, u_data), mirror, strict=True)]
            probability, u_dis, u_data = means
        return probability, u_dis, u_data, probability.argmax(1)

    def _of(self, output: Output) -> tuple[Tensor, Tensor, Tensor]:
        z = output.z
        if self.of_pixels:
            z = output.evidence(self.down @ z @ self.across.T)
        rows = z.movedim(1, -1)
        shape = rows.shape[:-1]
        data, distribution = _special.uncertainties(rows.reshape(-1, z.shape[1]), slopes=False).values
        return z.softmax(1), distribution.reshape(shape), data.reshape(shape)
