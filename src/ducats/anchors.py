"""Class descriptors of images, and anchors: cluster centres of descriptors (MADA)."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

LEAST = 10  # a class with fewer positions gets no descriptor


def class_sums(z: Tensor, features: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sum of features and the number of positions of each predicted class: ``(N, C, D), (N, C)``.

    Args:
        z: ``(N, C, h, w)``; the highest value is the prediction.
        features: ``(N, D, h, w)``; gradients flow to them.
        counted: ``(N, h, w)``, mask of positions that count; all by default.
    """
    classes = torch.arange(z.shape[1], device=z.device)
    winner = (z.detach().argmax(1).flatten(1)[..., None] == classes).float()  # (N, hw, C)
    if counted is not None:
        winner = winner * counted.flatten(1)[..., None]
    with torch.autocast(device_type=z.device.type, enabled=False):
        return winner.transpose(1, 2) @ features.float().flatten(2).transpose(1, 2), winner.sum(1)


def descriptor(z: Tensor, features: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the mean features of each class of each image, ``(N, C * D)``; zeros below LEAST positions.

    Args:
        z: ``(N, C, h, w)``; the highest value is the prediction.
        features: ``(N, D, h, w)``; gradients flow to them.
        counted: ``(N, h, w)``, mask of positions that count; all by default.
    """
    total, size = class_sums(z, features, counted)
    enough = (size >= LEAST)[..., None]
    return torch.where(enough, total / size.clamp(min=1)[..., None], 0.0).flatten(1)


def nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample a map at the points of a coarser grid with aligned corners: ``(..., H, W) -> (..., h, w)``.

    >>> nearest(torch.arange(10).view(2, 5), (1, 3))
    tensor([[0, 2, 4]])
    """
    down, across = (
        (torch.arange(few, device=values.device) * (many - 1) * 2 + few - 1) // (2 * max(few - 1, 1))
        for few, many in zip(size, values.shape[-2:], strict=True)
    )
    return values[..., down[:, None], across]


def anchors_of(descriptors: Tensor, count: int, seed: int) -> Tensor:
    """Return the centres of ``count`` k-means clusters: ``(count, K)``; fewer if fewer rows are distinct.

    Args:
        descriptors: ``(R, K)``.
    """
    from sklearn.cluster import KMeans  # slow; before the limit, which applies to loaded libraries only

    held = descriptors.float().cpu().numpy()
    groups = min(count, len(np.unique(held, axis=0)))
    # One thread: the order of sums over threads varies, and picks must be deterministic.
    with threadpool_limits(1):
        found = KMeans(groups, n_init=3, random_state=seed).fit(held).cluster_centers_
    return torch.from_numpy(found).float().to(descriptors.device)


def errors_to(descriptors: Tensor, anchors: Tensor) -> Tensor:
    """Return the mean squared error of each descriptor to each anchor: ``(R, K), (A, K) -> (R, A)``."""
    return torch.stack([((descriptors - anchor) ** 2).mean(1) for anchor in anchors], 1)
