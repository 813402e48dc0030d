"""The pixel by which a unit of several pixels is named."""

import numpy as np

from ducats.addresses import before
from ducats.columns import Array


def middles(position: Array, unit: Array, width: int) -> Array:
    """Of each unit, the pixel nearest to its centroid: one of its own; of several, the lowest position.

    Args:
        position: ``(A,)``, ``y * width + x``, all of one image.
        unit: ``(U,)``, addresses of each unit, in order.
        width: of the image.

    >>> middles(np.array([0, 1, 2, 5, 9]), np.array([3, 2]), width=4).tolist()
    [1, 5]
    """
    if not len(unit):
        return np.zeros(0, np.int64)
    owner, first = np.repeat(np.arange(len(unit)), unit), before(unit)
    # Whole numbers, so that equal distances are equal: those to the centroid, times the pixels of the unit.
    away = np.zeros(len(position), np.int64)
    for place in np.divmod(position.astype(np.int64), width):
        away += (place * unit[owner] - np.add.reduceat(place, first)[owner]) ** 2
    found: Array = position[np.lexsort((position, away, owner))[first]]
    return found
