"""Colours, markers and axes of all figures, for pages and files, light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

# The colour-blind safe palette of Okabe and Ito without yellow (invisible on white) and black (invisible on
# black). Markers distinguish methods as well, also in print.
PLOT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
MARKERS = (
    ("o", "M9.8 6a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0-8.4 0z"),
    ("s", "M10.2 2.2h7.6v7.6h-7.6z"),
    ("^", "M14 1.4l5 9h-10z"),
    ("D", "M14 1l5 5-5 5-5-5z"),
    ("v", "M14 10.6l5-9h-10z"),
    ("P", "M12.4 1.5h3.2v2.9h2.9v3.2h-2.9v2.9h-3.2v-2.9h-2.9v-3.2h2.9z"),
)
DASHES = ("solid", "dashed", "dotted", "dashdot")
DASH_ARRAYS = dict(zip(DASHES, ("none", "5 2.5", "1.5 2", "6 2 1.5 2"), strict=True))
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DASHED_LINE = (0, (4, 3))  # reference lines
TEXT_COLOUR = "#010203"  # placeholder for `currentColor`: lines and text follow the colour scheme
MATPLOTLIB_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ducats",
    "text.parse_math": False,
    "image.composite_image": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.titlesize": 10,
    "axes.titlecolor": TEXT_COLOUR,
    "text.color": TEXT_COLOUR,
    "xtick.color": TEXT_COLOUR,
    "ytick.color": TEXT_COLOUR,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": TEXT_COLOUR,
    "grid.alpha": 0.12,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class LineStyle:
    """Style of a line in figures and legends."""

    colour: str
    marker: str = ""  # matplotlib marker
    svg_path: str = ""  # the same marker as an SVG path in a box of 28 by 12
    dash: str = "solid"  # one of `DASHES`

    @property
    def dash_array(self) -> str:
        """Value of the SVG attribute ``stroke-dasharray``."""
        return DASH_ARRAYS[self.dash]


GREY_STYLE = LineStyle("#8a8a8a")  # for methods without a colour of their own


def assign_line_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Assign one style per method by its index; styles repeat after 42 methods."""
    styles = {}
    for index, name in enumerate(names):
        marker, svg_path = MARKERS[index % len(MARKERS)]
        styles[name] = LineStyle(PLOT_COLOURS[index % len(PLOT_COLOURS)], marker, svg_path)
    return styles


def format_compact(count: float) -> str:
    """Format a count compactly.

    >>> format_compact(655360), format_compact(12), format_compact(32.4751), format_compact(999.9)
    ('655k', '12', '32.5', '1k')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:  # would be rounded up to the unit
            return f"{count / unit:.3g}{name}"
    return f"{count:.3g}"


def format_power_of_ten(value: float) -> str:
    """Format a power of ten compactly.

    >>> format_power_of_ten(0.0001), format_power_of_ten(1), format_power_of_ten(100)
    ('10⁻⁴', '1', '10²')
    """
    exponent = round(math.log10(value))
    return "1" if exponent == 0 else f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def set_log_scale(axes: Axes, axis_name: Literal["x", "y"] = "y", *, narrow: bool = False) -> None:
    """Make an axis logarithmic with plain tick labels: 0.01, 0.1, 1.

    Args:
        narrow: label fewer ticks, as powers of ten, without minor ticks.
    """
    axes.set(**{f"{axis_name}scale": "log"})
    axis: Axis = getattr(axes, f"{axis_name}axis")
    axis.set_major_locator(LogLocator(numticks=4 if narrow else 6))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: format_power_of_ten(value) if narrow else f"{value:g}")
    )
    axis.set_minor_formatter(NullFormatter())
    if narrow:
        axis.set_minor_locator(NullLocator())
