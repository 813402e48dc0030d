"""Annotation cost in clicks: one click labels a connected piece of a unit."""

import numpy as np

from ducats.npz_columns import AnyArray


def pieces(position: AnyArray, label: AnyArray, unit: AnyArray, width: AnyArray) -> AnyArray:
    """Count the connected pieces with the same label in each unit (4-connectivity).

    Args:
        position: ``(A,)``, ``y * width + x``; distinct within a unit.
        label: ``(A,)``.
        unit: ``(U,)``, number of pixels in each unit, in order.
        width: ``(U,)``, width of the image that contains the unit.

    >>> pieces(np.array([0, 1, 3, 2]), np.array([5, 5, 5, 5]), np.array([3, 1]), np.array([3, 3])).tolist()
    [1, 1]
    """
    if (unit == 1).all():
        return np.ones(len(unit), np.int64)
    # Slow to import, and not needed if every unit is one pixel or one image.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # The unit goes into the bits above every position, so neighbours are never found in another unit.
    key = (np.repeat(np.arange(len(unit)), unit) << 33) + position
    order = np.argsort(key, kind="stable")
    key, label = key[order], label[order]
    owner = key >> 33
    wide = width[owner]
    # Merge horizontal runs first: their pixels are consecutive, and the remaining graph is small.
    joined = (np.diff(key) == 1) & (label[1:] == label[:-1]) & (((key & (2**33 - 1)) % wide)[1:] != 0)
    stretch = np.concatenate([[0], np.cumsum(~joined)])
    below = np.minimum(np.searchsorted(key, key + wide), len(key) - 1)
    meets = (key[below] == key + wide) & (label[below] == label)
    edges = (stretch[meets], stretch[below[meets]])
    count = int(stretch[-1]) + 1
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(count, count))
    found, piece = connected_components(graph, directed=False)
    owner_of_piece = np.zeros(found, np.int64)
    owner_of_piece[piece[stretch]] = owner  # a piece never spans two units
    return np.bincount(owner_of_piece, minlength=len(unit))
