"""Clicks: how many times an annotator has to say a class, if one word covers a connected piece of a unit."""

import numpy as np

from ducats.columns import Array


def pieces(position: Array, label: Array, unit: Array, width: Array) -> Array:
    """Count each unit's connected pieces of one label; neighbours share an edge.

    Args:
        position: ``(A,)``, ``y * width + x``; distinct within a unit.
        label: ``(A,)``.
        unit: ``(U,)``, addresses of each unit, in order.
        width: ``(U,)``, of the image in which the unit lies.

    >>> pieces(np.array([0, 1, 3, 2]), np.array([5, 5, 5, 5]), np.array([3, 1]), np.array([3, 3])).tolist()
    [1, 1]
    """
    if (unit == 1).all():
        return np.ones(len(unit), np.int64)
    # Imported here, for pixels and images need none of it and it takes a while.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Beyond every position, so that no neighbour is found in another unit.
    key = (np.repeat(np.arange(len(unit)), unit) << 33) + position
    order = np.argsort(key, kind="stable")
    key, label = key[order], label[order]
    owner = key >> 33
    wide = width[owner]
    # Pieces of rows first: their parts follow upon each other, and what is left for the graph is small.
    joined = (np.diff(key) == 1) & (label[1:] == label[:-1]) & (((key & (2**33 - 1)) % wide)[1:] != 0)
    stretch = np.concatenate([[0], np.cumsum(~joined)])
    below = np.minimum(np.searchsorted(key, key + wide), len(key) - 1)
    meets = (key[below] == key + wide) & (label[below] == label)
    edges = (stretch[meets], stretch[below[meets]])
    count = int(stretch[-1]) + 1
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(count, count))
    found, piece = connected_components(graph, directed=False)
    owner_of_piece = np.zeros(found, np.int64)
    owner_of_piece[piece[stretch]] = owner  # all of a piece lie in one unit
    return np.bincount(owner_of_piece, minlength=len(unit))
