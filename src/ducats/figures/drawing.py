"""Figures before rendering, their options and their layout."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.figures.paper import Draw


@dataclass(frozen=True)
class Asked:
    """Options of a figure.

    Args:
        round: show this round only, counted from 1; None: the figure's default.
        images: keys of pool images; empty: the figure's default.
        points: maximum number of points in figures with an expensive layout; None: the figure's default.
    """

    round: int | None = None
    images: tuple[str, ...] = ()
    points: int | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure ready for rendering.

    Args:
        draw: draws everything on a matplotlib figure.
        size: width and height in inches.
        description: what the figure shows, as text with its main numbers.
        lacks: a message for each corrupt snapshot that was skipped.
    """

    draw: Draw
    size: tuple[float, float]
    title: str
    description: str
    lacks: tuple[str, ...] = ()


def panels(figure: Figure, count: int, columns: int, *, share: bool = False) -> list[Axes]:
    """Create ``count`` axes in rows of at most ``columns``; hide unused axes.

    Args:
        share: whether all panels share their axis limits.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    found: list[Axes] = list(grid.ravel())
    for axes in found[count:]:
        axes.set_visible(False)
    if share:  # tick labels on the lowest panel of each column, even above a hidden one
        for axes in found[:count][-columns:]:
            axes.tick_params(labelbottom=True)
    return found[:count]
