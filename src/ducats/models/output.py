"""Output of a model for a batch of images."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor


def identity(z: Tensor) -> Tensor:
    """Return log alpha unchanged: no evidence function is left to apply."""
    return z


class Output(NamedTuple):
    """Model output for a batch of images, per image or per pixel.

    In segmentation, ``z`` are logits on the network's coarse grid. ``upsampling.upsample(output)``
    interpolates them to ``size`` and applies ``evidence``, which gives log alpha. Objectives never build that
    full map, see ``objectives.masked_means``.
    """

    z: Tensor  # (N, C), log alpha; or (N, C, h, w), see above; float32
    features: Tensor | None  # (N, D, ...), inputs of the last layer; None if the model does not return them
    size: tuple[int, int] | None = None  # height and width of the images; None: z is per image
    evidence: Callable[[Tensor], Tensor] = identity  # from interpolated logits to log alpha
    extras: Mapping[str, Tensor] | None = None  # probe columns, (N, ...) each; per pixel (N, ..., h, w)
    earlier_features: Tensor | None = None  # (N, E, h, w), see `deeplab.request_earlier_features`
