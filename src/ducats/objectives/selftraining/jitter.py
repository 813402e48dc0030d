"""Colour jitter on the device: a strong view that does not move pixels."""

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue


def jittered(images: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast and saturation, in this order, by random factors per image.

    Args:
        images: float32 ``(N, channels, H, W)`` in [0, 1]; saturation is changed only for three channels.
        strength: factors are sampled between ``1 - strength`` and ``1 + strength``.
    """
    factors = 1 + strength * (2 * torch.rand(3, len(images), 1, 1, 1, device=images.device) - 1)
    shown = (images * factors[0]).clamp(0, 1)
    grey = _grey(shown)
    middle = grey.mean((2, 3), keepdim=True)
    shown = (middle + factors[1] * (shown - middle)).clamp(0, 1)
    if images.shape[1] == len(LUMA):
        grey = _grey(shown)
        shown = (grey + factors[2] * (shown - grey)).clamp(0, 1)
    return shown


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != len(LUMA):
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    grey: Tensor = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return grey
