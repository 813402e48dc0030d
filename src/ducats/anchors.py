"""An image as its classes look in it, and anchors: the middles of groups of such images (MADA)."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

LEAST = 10  # positions of a class, below which it is not described


def class_sums(z: Tensor, features: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum of the features of each predicted class, and of how many positions it is: ``(N, C, D), (N, C)``.

    Args:
        z: ``(N, C, h, w)``; what is highest is predicted.
        features: ``(N, D, h, w)``; gradients flow to them.
        counted: ``(N, h, w)``, which positions count; all if left out.
    """
    classes = torch.arange(z.shape[1], device=z.device)
    winner = (z.detach().argmax(1).flatten(1)[..., None] == classes).float()  # (N, hw, C)
    if counted is not None:
        winner = winner * counted.flatten(1)[..., None]
    with torch.autocast(device_type=z.device.type, enabled=False):
        return winner.transpose(1, 2) @ features.float().flatten(2).transpose(1, 2), winner.sum(1)


def descriptor(z: Tensor, features: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean features of each class of each image, ``(N, C * D)``; zeros for one of fewer than LEAST positions.

    Args:
        z: ``(N, C, h, w)``; what is highest is predicted.
        features: ``(N, D, h, w)``; gradients flow to them.
        counted: ``(N, h, w)``, which positions count; all if left out.
    """
    total, size = class_sums(z, features, counted)
    enough = (size >= LEAST)[..., None]
    return torch.where(enough, total / size.clamp(min=1)[..., None], 0.0).flatten(1)


def nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """A map's values at the points of a coarser grid, corner on corner: ``(..., H, W) -> (..., h, w)``.

    >>> nearest(torch.arange(10).view(2, 5), (1, 3))
    tensor([[0, 2, 4]])
    """
    down, across = (
        (torch.arange(few, device=values.device) * (many - 1) * 2 + few - 1) // (2 * max(few - 1, 1))
        for few, many in zip(size, values.shape[-2:], strict=True)
    )
    return values[..., down[:, None], across]


def anchors_of(descriptors: Tensor, count: int, seed: int) -> Tensor:
    """Centres of ``count`` groups, by k-means: ``(count, K)``; fewer if fewer rows differ.

    Args:
        descriptors: ``(R, K)``.
        count: of groups.
        seed: of the first centres.
    """
    from sklearn.cluster import KMeans  # takes a second; before the limit, which is for what is loaded

    held = descriptors.float().cpu().numpy()
    groups = min(count, len(np.unique(held, axis=0)))
    # One thread: sums over several threads come out in any order, and picks must be repeatable.
    with threadpool_limits(1):
        found = KMeans(groups, n_init=3, random_state=seed).fit(held).cluster_centers_
    return torch.from_numpy(found).float().to(descriptors.device)


def errors_to(descriptors: Tensor, anchors: Tensor) -> Tensor:
    """Mean squared error of each descriptor against each anchor: ``(R, K), (A, K) -> (R, A)``."""
    return torch.stack([((descriptors - anchor) ** 2).mean(1) for anchor in anchors], 1)
