"""Colour jitter on the device: a strong view that does not move pixels."""

import torch
from torch import Tensor

_LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # weights of red, green and blue


def jitter_colours(images: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast and saturation, in this order, by random factors per image.

    Args:
        images: float32 ``(N, channels, H, W)`` in [0, 1]; saturation is changed only for three channels.
        strength: factors are sampled between ``1 - strength`` and ``1 + strength``.
    """
    factors = 1 + strength * (2 * torch.rand(3, len(images), 1, 1, 1, device=images.device) - 1)
    result = (images * factors[0]).clamp(0, 1)
    grey = _grey(result)
    mean_grey = grey.mean((2, 3), keepdim=True)
    result = (mean_grey + factors[1] * (result - mean_grey)).clamp(0, 1)
    if images.shape[1] == len(_LUMA_WEIGHTS):
        grey = _grey(result)
        result = (grey + factors[2] * (result - grey)).clamp(0, 1)
    return result


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != len(_LUMA_WEIGHTS):
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    grey: Tensor = _LUMA_WEIGHTS[0] * red + _LUMA_WEIGHTS[1] * green + _LUMA_WEIGHTS[2] * blue
    return grey
