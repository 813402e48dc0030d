"""The central pixel of a unit, used in question ids."""

import numpy as np

from ducats.npz_columns import AnyArray
from ducats.pixel_runs import exclusive_cumsum


def middles(position: AnyArray, unit: AnyArray, width: int) -> AnyArray:
    """Return the pixel of each unit that is nearest to the unit's centroid; on ties the lowest position.

    Args:
        position: ``(A,)``, ``y * width + x``, all in one image.
        unit: ``(U,)``, number of pixels in each unit, in order.
        width: width of the image.

    >>> middles(np.array([0, 1, 2, 5, 9]), np.array([3, 2]), width=4).tolist()
    [1, 5]
    """
    if not len(unit):
        return np.zeros(0, np.int64)
    owner, first = np.repeat(np.arange(len(unit)), unit), exclusive_cumsum(unit)
    # Integers make ties exact: distances to the centroid are scaled by the number of pixels in the unit.
    away = np.zeros(len(position), np.int64)
    for place in np.divmod(position.astype(np.int64), width):
        away += (place * unit[owner] - np.add.reduceat(place, first)[owner]) ** 2
    found: AnyArray = position[np.lexsort((position, away, owner))[first]]
    return found
