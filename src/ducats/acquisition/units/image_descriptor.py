"""Class descriptors of an image that is labelled whole, see `ducats.acquisition.class_descriptors`."""

from torch import Tensor

from ducats.acquisition.class_descriptors import class_descriptors, downsample_nearest
from ducats.acquisition.criteria import require_features
from ducats.data.domain import UNLABELLED


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
