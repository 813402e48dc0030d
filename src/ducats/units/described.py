"""Class descriptors of an image that is labelled whole, see `ducats.class_descriptors`."""

from torch import Tensor

from ducats.anchors import descriptor, nearest
from ducats.criteria import given
from ducats.domain import UNLABELLED


def described(z: Tensor, features: Tensor | None, target: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean features of each predicted class, on the feature grid: ``(1, C * D)``.

    Args:
        z: log alpha, ``(C, H, W)``.
        features: ``(D, h, w)``, if the model returns them.
        target: known labels, ``(H, W)``: only ``UNLABELLED`` positions count; all count if there are none.
        labels: label map of a source image, ``(H, W)``: only correctly predicted positions count, instead.
    """
    seen = given(features)
    size = (int(seen.shape[-2]), int(seen.shape[-1]))
    coarse = nearest(z, size)
    if labels is not None:
        counted = nearest(labels, size) == coarse.argmax(0)
    else:
        counted = nearest(target, size) == UNLABELLED
        counted = counted | ~(target == UNLABELLED).any()
    return descriptor(coarse[None], seen[None], counted[None])
