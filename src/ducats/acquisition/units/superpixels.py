"""SLIC superpixels."""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.utils.errors import UserError


def compute_superpixels(pixels: Tensor, shape: tuple[int, int], count: int, compactness: float) -> Tensor:
    """Compute SLIC superpixels: a map of indices, int64 ``(height, width)``, on the CPU.

    Args:
        pixels: uint8 ``(channels, h, w)``; resized if the size differs from ``shape``.
        shape: height and width of the result.
        count: approximate number of superpixels.
        compactness: higher values give squarer superpixels.
    """
    slic = import_slic()
    image = pixels.cpu().float()[None] / 255
    if tuple(image.shape[2:]) != shape:
        image = F.interpolate(image, shape, mode="bilinear", antialias=True)
    found = slic(
        image[0].permute(1, 2, 0).numpy(), count, compactness, channel_axis=-1, start_label=0, sigma=0
    )
    numbered: Tensor = torch.from_numpy(found).long().unique(return_inverse=True)[1]
    return numbered


def import_slic() -> Any:
    """Return scikit-image's SLIC; raise if it is not installed."""
    try:
        return importlib.import_module("skimage.segmentation").slic
    except ImportError:
        raise UserError(
            "task.unit=superpixel needs scikit-image, which is not installed: pip install "
            "'ducats[superpixels]', or set task.unit=region"
        ) from None
