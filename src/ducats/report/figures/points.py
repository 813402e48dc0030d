"""Scatter plots of snapshot samples, and statistics on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ducats.report.figures.style import PLOT_COLOURS
from ducats.utils.npz_columns import AnyArray

SOURCE_COLOUR, TARGET_COLOUR, SELECTED_COLOUR = PLOT_COLOURS[6], PLOT_COLOURS[0], PLOT_COLOURS[1]
MAX_VECTOR_POINTS = 150  # points drawn as vector shapes; more are rasterised
MAX_COLOURED_CLASSES = 6  # classes with a colour of their own; more are hard to distinguish


def scatter_rasterised(
    axes: Axes,
    x: AnyArray,
    y: AnyArray,
    colour: str | Sequence[str],
    marker: str = "o",
    size: float = 9,
    **overrides: Any,
) -> None:
    """Draw many points, rasterised: thousands of vector shapes would make a large file."""
    if len(x):
        style = {"linewidths": 0, "alpha": 0.75, **overrides}
        axes.scatter(x, y, s=size, c=colour, marker=marker, rasterized=True, **style)


def scatter_highlighted(
    axes: Axes, x: AnyArray, y: AnyArray, colour: str = SELECTED_COLOUR, marker: str = "o", size: float = 26
) -> None:
    """Highlight some points among many."""
    is_dense = len(x) > MAX_VECTOR_POINTS  # smaller, to cover less of the points below
    style: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.2 if is_dense else 0.6, "zorder": 3}
    axes.scatter(
        x, y, s=size / 3 if is_dense else size, facecolors=colour, marker=marker, rasterized=is_dense, **style
    )


def scatter_rings(axes: Axes, x: AnyArray, y: AnyArray, size: float = 20) -> None:
    """Draw rings around labelled samples."""
    style: dict[str, Any] = {
        "facecolors": "none",
        "edgecolors": SELECTED_COLOUR,
        "linewidths": 0.9,
        "zorder": 2.5,
    }
    axes.scatter(x, y, s=size, rasterized=len(x) > MAX_VECTOR_POINTS, **style)


def legend_marker(label: str, marker: str, **style: Any) -> Line2D:
    """Return a legend entry of a marker without a line."""
    return Line2D([], [], linestyle="", marker=marker, label=label, **style)


def sample_ids(target: AnyArray, image: AnyArray, position: AnyArray) -> AnyArray:
    """Return a unique number for each sample, the same in every run on the same data."""
    ids: AnyArray = (target.astype(np.int64) << 62) + (image.astype(np.int64) << 31) + position
    return ids


def auroc(low: AnyArray, high: AnyArray) -> float | None:
    """Probability that a value of ``high`` exceeds one of ``low``; ties count half. None if one is empty."""
    if not len(low) or not len(high):
        return None
    ordered = np.sort(low)
    n_below = sum(np.searchsorted(ordered, high, side).sum() for side in ("left", "right")) / 2
    return float(n_below / (len(low) * len(high)))


def most_frequent_classes(classes: AnyArray, max_classes: int = MAX_COLOURED_CLASSES) -> list[int]:
    """Return the most frequent classes in descending order; ties are broken by class number."""
    unique_classes, counts = np.unique(classes, return_counts=True)
    return [int(unique_classes[index]) for index in np.argsort(-counts, kind="stable")[:max_classes]]


def source_neighbour_share(
    features: AnyArray, target: AnyArray, n_neighbours: int = 10
) -> tuple[float, float] | None:
    """Measure domain mixing: the mean share of source samples among a target sample's nearest neighbours.

    Args:
        features: ``(N, D)``.
        target: ``(N,)`` bool.
        n_neighbours: number of neighbours of each target sample, without itself.

    Returns:
        The share, and its value for fully mixed domains; None if a domain is missing or there are too few
        samples.
    """
    n_samples = len(features)
    if not target.any() or target.all() or n_samples <= n_neighbours:
        return None
    features64 = features.astype(np.float64)
    squares = (features64**2).sum(1)
    target_rows = np.flatnonzero(target)
    shares = []
    for chunk in np.array_split(target_rows, -(-len(target_rows) // 500)):
        distance = squares[chunk, None] - 2 * features64[chunk] @ features64.T + squares
        distance[np.arange(len(chunk)), chunk] = np.inf
        nearest = np.argpartition(distance, n_neighbours - 1, axis=1)[:, :n_neighbours]
        shares.append((~target[nearest]).mean(1))
    return float(np.concatenate(shares).mean()), float((~target).sum() / (n_samples - 1))
