"""Scatter plots of snapshot samples, and statistics on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ducats.figures.style import COLOURS

Array = np.ndarray[Any, Any]

SOURCE, TARGET, PICKED = COLOURS[6], COLOURS[0], COLOURS[1]
FEW = 150  # points drawn as vector shapes; more are rasterised
APART = 6  # classes with a colour of their own; more are hard to distinguish


def scatter(
    axes: Axes,
    x: Array,
    y: Array,
    colour: str | Sequence[str],
    marker: str = "o",
    size: float = 9,
    **more: Any,
) -> None:
    """Draw many points, rasterised: thousands of vector shapes would make a large file."""
    if len(x):
        how = {"linewidths": 0, "alpha": 0.75, **more}
        axes.scatter(x, y, s=size, c=colour, marker=marker, rasterized=True, **how)


def marked(axes: Axes, x: Array, y: Array, colour: str = PICKED, marker: str = "o", size: float = 26) -> None:
    """Highlight some points among many."""
    many = len(x) > FEW  # smaller, to cover less of the points below
    how: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.2 if many else 0.6, "zorder": 3}
    axes.scatter(x, y, s=size / 3 if many else size, facecolors=colour, marker=marker, rasterized=many, **how)


def ringed(axes: Axes, x: Array, y: Array, size: float = 20) -> None:
    """Draw rings around labelled samples."""
    how: dict[str, Any] = {"facecolors": "none", "edgecolors": PICKED, "linewidths": 0.9, "zorder": 2.5}
    axes.scatter(x, y, s=size, rasterized=len(x) > FEW, **how)


def addresses(target: Array, image: Array, position: Array) -> Array:
    """Return a unique number for each sample, the same in every run on the same data."""
    found: Array = (target.astype(np.int64) << 62) + (image.astype(np.int64) << 31) + position
    return found


def auroc(low: Array, high: Array) -> float | None:
    """Probability that a value of ``high`` exceeds one of ``low``; ties count half. None if one is empty."""
    from scipy.stats import rankdata

    if not len(low) or not len(high):
        return None
    ranks = rankdata(np.concatenate([low, high]))[len(low) :]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(low) * len(high)))


def commonest(classes: Array, most: int = APART) -> list[int]:
    """Return the most frequent classes in descending order; ties are broken by class number."""
    found, counts = np.unique(classes, return_counts=True)
    return [int(found[place]) for place in np.argsort(-counts, kind="stable")[:most]]


def from_source(features: Array, target: Array, neighbours: int = 10) -> tuple[float, float] | None:
    """Measure domain mixing: the mean share of source samples among a target sample's nearest neighbours.

    Args:
        features: ``(N, D)``.
        target: ``(N,)`` bool.
        neighbours: number of neighbours of each target sample, without itself.

    Returns:
        The share, and its value for fully mixed domains; None if a domain is missing or there are too few
        samples.
    """
    many = len(features)
    if not target.any() or target.all() or many <= neighbours:
        return None
    rows = features.astype(np.float64)
    squares = (rows**2).sum(1)
    mine = np.flatnonzero(target)
    shares = []
    for some in np.array_split(mine, -(-len(mine) // 500)):
        distance = squares[some, None] - 2 * rows[some] @ rows.T + squares
        distance[np.arange(len(some)), some] = np.inf
        nearest = np.argpartition(distance, neighbours - 1, axis=1)[:, :neighbours]
        shares.append((~target[nearest]).mean(1))
    return float(np.concatenate(shares).mean()), float((~target).sum() / (many - 1))
