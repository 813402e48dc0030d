"""Figures before rendering, their options and their layout."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.figures.render import DrawFunction


@dataclass(frozen=True)
class FigureOptions:
    """Options of a figure."""

    round: int | None = None  # show this round only, counted from 1; None: the figure's default
    images: tuple[str, ...] = ()  # keys of pool images; empty: the figure's default
    # Maximum number of points in figures with an expensive layout; None: the figure's default.
    max_points: int | None = None


@dataclass(frozen=True)
class PreparedFigure:
    """A figure ready for rendering."""

    draw: DrawFunction  # draws everything on a matplotlib figure
    size: tuple[float, float]  # width and height in inches
    title: str
    description: str  # what the figure shows, as text with its main numbers
    snapshot_warnings: tuple[str, ...] = ()  # a message for each corrupt snapshot that was skipped


def make_panels(figure: Figure, count: int, columns: int, *, share_axes: bool = False) -> list[Axes]:
    """Create ``count`` axes in rows of at most ``columns``; hide unused axes."""
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_axes, sharey=share_axes)
    all_axes: list[Axes] = list(grid.ravel())
    for axes in all_axes[count:]:
        axes.set_visible(False)
    if share_axes:  # tick labels on the lowest panel of each column, even above a hidden one
        for axes in all_axes[:count][-columns:]:
            axes.tick_params(labelbottom=True)
    return all_axes[:count]
