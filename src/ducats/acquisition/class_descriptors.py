"""Class descriptors of images, and anchors: cluster centres of descriptors (MADA)."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ducats.acquisition.criteria import require_features
from ducats.data.domain import UNLABELLED

MIN_CLASS_POSITIONS = 10  # a class with fewer positions gets no descriptor


def class_feature_sums(z: Tensor, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sum of features and the number of positions of each predicted class: ``(N, C, D), (N, C)``.

    Args:
        z: ``(N, C, h, w)``; the highest value is the prediction.
        features: ``(N, D, h, w)``; gradients flow to them.
        mask: ``(N, h, w)``, mask of positions that count; all by default.
    """
    classes = torch.arange(z.shape[1], device=z.device)
    is_predicted = (z.detach().argmax(1).flatten(1)[..., None] == classes).float()  # (N, hw, C)
    if mask is not None:
        is_predicted = is_predicted * mask.flatten(1)[..., None]
    with torch.autocast(device_type=z.device.type, enabled=False):
        return is_predicted.transpose(1, 2) @ features.float().flatten(2).transpose(1, 2), is_predicted.sum(1)


def class_descriptors(z: Tensor, features: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean features of each class of each image, ``(N, C * D)``.

    A class with fewer than ``MIN_CLASS_POSITIONS`` positions gets zeros. The arguments are those of
    `class_feature_sums`. Gradients are those of the mean times twice the class's share of the positions, so
    that a position counts the same in a small and in a large class (published code).
    """
    total, size = class_feature_sums(z, features, mask)
    enough = (size >= MIN_CLASS_POSITIONS)[..., None]
    mean = total.detach() / size.clamp(min=1)[..., None]
    with_gradient = total * (2 / (z.shape[-2] * z.shape[-1]))  # 1 / size times 2 size / (h w)
    return torch.where(enough, mean + (with_gradient - with_gradient.detach()), 0.0).flatten(1)


def image_descriptor(
    z: Tensor, features: Tensor | None, known_labels: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Return the mean features of each predicted class, on the feature grid: ``(1, C * D)``.

    Args:
        z: log alpha, ``(C, H, W)``.
        features: ``(D, h, w)``, if the model returns them.
        known_labels: ``(H, W)``: only ``UNLABELLED`` positions count; all count if there are none.
        labels: label map of a source image, ``(H, W)``: only correctly predicted positions count, instead.
    """
    feature_map = require_features(features)
    size = (int(feature_map.shape[-2]), int(feature_map.shape[-1]))
    coarse = downsample_nearest(z, size)
    if labels is not None:
        mask = downsample_nearest(labels, size) == coarse.argmax(0)
    else:
        mask = downsample_nearest(known_labels, size) == UNLABELLED
        mask = mask | ~(known_labels == UNLABELLED).any()
    return class_descriptors(coarse[None], feature_map[None], mask[None])


def downsample_nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample a map at the points of a coarser grid with aligned corners: ``(..., H, W) -> (..., h, w)``.

    >>> downsample_nearest(torch.arange(10).view(2, 5), (1, 3))
    tensor([[0, 2, 4]])
    """
    row_index, column_index = (
        (torch.arange(few, device=values.device) * (many - 1) * 2 + few - 1) // (2 * max(few - 1, 1))
        for few, many in zip(size, values.shape[-2:], strict=True)
    )
    return values[..., row_index[:, None], column_index]


def fit_anchors(descriptors: Tensor, n_anchors: int, seed: int) -> Tensor:
    """Return the centres of k-means clusters, ``(n_anchors, K)``; fewer if fewer rows are distinct."""
    from sklearn.cluster import KMeans  # slow; before the limit, which applies to loaded libraries only

    rows = descriptors.float().cpu().numpy()
    n_clusters = min(n_anchors, len(np.unique(rows, axis=0)))
    # One thread: the order of sums over threads varies, and picks must be deterministic.
    with threadpool_limits(1):
        found = KMeans(n_clusters, n_init=3, random_state=seed).fit(rows).cluster_centers_
    return torch.from_numpy(found).float().to(descriptors.device)


def anchor_errors(descriptors: Tensor, anchors: Tensor) -> Tensor:
    """Return the mean squared error of each descriptor to each anchor: ``(R, K), (A, K) -> (R, A)``."""
    return torch.stack([((descriptors - anchor) ** 2).mean(1) for anchor in anchors], 1)
