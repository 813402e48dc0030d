"""Sums, means and maxima over the square window around each pixel, on any device.

Windows are ``2 radius + 1`` pixels wide and are clipped at the border, where means are over fewer pixels. All
operations are separable: along rows, then along columns.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_MAX_COUNTS = 2**24  # maximum number of counts in memory


def window_size(height: int, width: int, radius: int, device: torch.device) -> Tensor:
    """Return the number of pixels of each window: int64 ``(height, width)``."""
    rows, columns = (_window_bounds(length, radius, device) for length in (height, width))
    return torch.outer(rows[1] - rows[0], columns[1] - columns[0])


def window_mean(values: Tensor, radius: int) -> Tensor:
    """Return the mean over each window: ``(..., H, W) -> (..., H, W)``.

    >>> window_mean(torch.tensor([[1.0, 2.0, 6.0]]), 1)
    tensor([[1.5000, 3.0000, 4.0000]])
    """
    *_, height, width = values.shape
    side, maps = 2 * radius + 1, values.reshape(-1, 1, height, width)
    total = F.avg_pool2d(maps, (1, side), 1, (0, radius), divisor_override=1)
    total = F.avg_pool2d(total, (side, 1), 1, (radius, 0), divisor_override=1)
    return total.reshape(values.shape) / window_size(height, width, radius, values.device)


def window_log_mean(logs: Tensor, radius: int) -> Tensor:
    """Return the log of the mean of the exponentials over each window: ``(..., H, W) -> (..., H, W)``."""
    side, total = 2 * radius + 1, logs
    for pad, axis in (((radius, radius), -1), ((0, 0, radius, radius), -2)):
        total = F.pad(total, pad, value=-math.inf).unfold(axis, side, 1).logsumexp(-1)
    *_, height, width = logs.shape
    return total - window_size(height, width, radius, logs.device).log()


def window_max(values: Tensor, radius: int) -> Tensor:
    """Return the maximum over each window of non-negative values: ``(..., H, W) -> (..., H, W)``."""
    for pad, axis in (((radius, radius), -1), ((0, 0, radius, radius), -2)):
        values = F.pad(values, pad)
        width, side = 1, 2 * radius + 1
        # Windows double in width; the last step overlaps two of them to reach the exact width.
        while width < side:
            step = min(width, side - width)
            length = values.shape[axis] - step
            values = torch.maximum(values.narrow(axis, 0, length), values.narrow(axis, step, length))
            width += step
    return values


def window_impurity(predicted: Tensor, classes: int, radius: int) -> Tensor:
    """Return the entropy of the predicted classes in each window, divided by its maximum ln C (RIPU).

    Args:
        predicted: class indices, ``(..., H, W)``.
        radius: windows are ``2 radius + 1`` pixels wide.
    """
    *_, height, width = predicted.shape
    size = window_size(height, width, radius, predicted.device)
    total = torch.zeros(predicted.shape, device=predicted.device)
    for class_chunk in torch.arange(classes, device=predicted.device).split(
        max(1, _MAX_COUNTS // predicted.numel())
    ):
        count = _window_count(predicted == class_chunk.view(-1, *[1] * predicted.ndim), radius)
        share = count / size
        total -= torch.xlogy(share, share).sum(0)
    return total / uniform_entropy(classes)


def uniform_entropy(classes: int) -> float:
    """Return the maximum entropy over so many classes; ln 2 for a single class, to avoid division by zero."""
    return math.log(max(classes, 2))


def _window_count(mask: Tensor, radius: int) -> Tensor:
    """Count the pixels of a mask in each window; exact in integers, so equal histograms stay equal."""
    count = mask.int()
    for axis in (-1, -2):
        low, high = _window_bounds(mask.shape[axis], radius, mask.device)
        cumulative = F.pad(count.cumsum(axis, dtype=torch.int32), (1, 0) if axis == -1 else (0, 0, 1, 0))
        count = cumulative.index_select(axis, high) - cumulative.index_select(axis, low)
    return count


def _window_bounds(length: int, radius: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first index of each window, and the index after its last."""
    where = torch.arange(length, device=device)
    return (where - radius).clamp(min=0), (where + radius + 1).clamp(max=length)
