"""An image that is bought whole, as its classes look in it: see `ducats.anchors`."""

from torch import Tensor

from ducats.anchors import descriptor, nearest
from ducats.criteria import given
from ducats.domain import UNLABELLED


def described(z: Tensor, features: Tensor | None, target: Tensor, labels: Tensor | None = None) -> Tensor:
    """Mean features of each class, on the features' own grid: ``(1, C * D)``.

    Args:
        z: log alpha, ``(C, H, W)``.
        features: ``(D, h, w)``, if the model gives them.
        target: what is known, ``(H, W)``: positions count that are UNLABELLED; all, if none is.
        labels: of a source image, ``(H, W)``: positions count that are predicted rightly, instead.
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
