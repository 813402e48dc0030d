"""What a figure is before it is painted, and what may be asked of it."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.figures.paper import Draw


@dataclass(frozen=True)
class Asked:
    """What was said beside the runs.

    Args:
        round: one question only, counted from 1; None: the figure's own choice.
        images: keys of the pool; none: the figure's own choice.
        points: at most so many, where a figure takes long to lay them out; None: the figure's own choice.
    """

    round: int | None = None
    images: tuple[str, ...] = ()
    points: int | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure that can be painted.

    Args:
        draw: puts everything on a matplotlib figure.
        size: width and height in inches.
        title: what it is.
        description: what it shows, in words, with its main numbers.
        lacks: a sentence about each damaged snapshot that it had to do without.
    """

    draw: Draw
    size: tuple[float, float]
    title: str
    description: str
    lacks: tuple[str, ...] = ()


def panels(figure: Figure, count: int, columns: int, *, share: bool = False) -> list[Axes]:
    """So many axes in rows of ``columns``, the places that are left over empty.

    Args:
        figure: to put them on.
        count: of axes.
        columns: at most so many beside each other.
        share: whether all have the same limits.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    found: list[Axes] = list(grid.ravel())
    for axes in found[count:]:
        axes.set_visible(False)
    if share:  # the lowest of each column has the numbers, also above an empty place
        for axes in found[:count][-columns:]:
            axes.tick_params(labelbottom=True)
    return found[:count]
