"""Geometry of units: clicks to label them, and their central pixels."""

import numpy as np

from ducats.runfolder.pixel_runs import exclusive_cumsum
from ducats.utils.npz_columns import AnyArray


def clicks_per_unit(position: AnyArray, label: AnyArray, unit_sizes: AnyArray, width: AnyArray) -> AnyArray:
    """Count the connected pieces with the same label in each unit (4-connectivity); each takes one click.

    Args:
        position: ``(A,)``, ``y * width + x``; distinct within a unit.
        unit_sizes: ``(U,)``, number of pixels in each unit, in order.
        width: ``(U,)``, width of the image that contains the unit.

    >>> position, label = np.array([0, 1, 3, 2]), np.array([5, 5, 5, 5])
    >>> clicks_per_unit(position, label, unit_sizes=np.array([3, 1]), width=np.array([3, 3])).tolist()
    [1, 1]
    """
    if (unit_sizes == 1).all():
        return np.ones(len(unit_sizes), np.int64)
    # Slow to import, and not needed if every unit is one pixel or one image.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # The unit goes into the bits above every position, so neighbours are never found in another unit.
    key = (np.repeat(np.arange(len(unit_sizes)), unit_sizes) << 33) + position
    order = np.argsort(key, kind="stable")
    key, label = key[order], label[order]
    owner = key >> 33
    row_width = width[owner]
    # Merge horizontal runs first: their pixels are consecutive, and the remaining graph is small.
    joined = (np.diff(key) == 1) & (label[1:] == label[:-1]) & (((key & (2**33 - 1)) % row_width)[1:] != 0)
    run_id = np.concatenate([[0], np.cumsum(~joined)])
    below = np.minimum(np.searchsorted(key, key + row_width), len(key) - 1)
    joins_below = (key[below] == key + row_width) & (label[below] == label)
    edges = (run_id[joins_below], run_id[below[joins_below]])
    count = int(run_id[-1]) + 1
    graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(count, count))
    n_pieces, piece = connected_components(graph, directed=False)
    owner_of_piece = np.zeros(n_pieces, np.int64)
    owner_of_piece[piece[run_id]] = owner  # a piece never spans two units
    return np.bincount(owner_of_piece, minlength=len(unit_sizes))


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
