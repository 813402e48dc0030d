"""The central pixel of a unit, used in question ids."""

import numpy as np

from ducats.runfolder.pixel_runs import exclusive_cumsum
from ducats.utils.npz_columns import AnyArray


def central_pixels(position: AnyArray, unit_sizes: AnyArray, width: int) -> AnyArray:
    """Return the pixel of each unit that is nearest to the unit's centroid; on ties the lowest position.

    Args:
        position: ``(A,)``, ``y * width + x``, all in one image.
        unit_sizes: ``(U,)``, number of pixels in each unit, in order.
        width: width of the image.

    >>> central_pixels(np.array([0, 1, 2, 5, 9]), np.array([3, 2]), width=4).tolist()
    [1, 5]
    """
    if not len(unit_sizes):
        return np.zeros(0, np.int64)
    owner, first = np.repeat(np.arange(len(unit_sizes)), unit_sizes), exclusive_cumsum(unit_sizes)
    # Integers make ties exact: distances to the centroid are scaled by the number of pixels in the unit.
    squared_distance = np.zeros(len(position), np.int64)
    for coordinate in np.divmod(position.astype(np.int64), width):
        squared_distance += (coordinate * unit_sizes[owner] - np.add.reduceat(coordinate, first)[owner]) ** 2
    centres: AnyArray = position[np.lexsort((position, squared_distance, owner))[first]]
    return centres
