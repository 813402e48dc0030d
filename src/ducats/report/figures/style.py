"""Colours, markers and axes of all figures, for pages and files, light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, NullFormatter, NullLocator

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
    "axes.titley": 1.0,  # no search for a free position, which takes a tenth of the time
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


def format_log_tick(value: float) -> str:
    """Format a value on a logarithmic axis: plain, or as a power of ten if it is very small or large.

    >>> [format_log_tick(value) for value in (0.0001, 0.0003, 0.03, 1, 500, 1e6)]
    ['10⁻⁴', '3·10⁻⁴', '0.03', '1', '500', '10⁶']
    """
    if 0.001 <= value < 10_000:
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power if float(mantissa) == 1 else f"{float(mantissa):g}·{power}"


class LogTickLocator(Locator):
    """Ticks of a logarithmic axis at decades; in a smaller range at further values, never fewer than two."""

    MIN_TICKS = 3
    MULTIPLES = ((1,), (1, 3), (1, 2, 5))  # ticks of each decade, the fewest first

    def __init__(self, max_ticks: int) -> None:
        self.max_ticks = max_ticks

    def __call__(self) -> list[float]:
        """Return the ticks of the visible range."""
        assert self.axis is not None
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two values."""
        low, high = sorted((vmin, vmax))
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = max(1, math.ceil((last - first) / self.max_ticks))
        exponents = [exponent for exponent in range(first, last + 1) if exponent % step == 0]
        for multiples in self.MULTIPLES:
            values = [float(f"{multiple}e{exponent}") for exponent in exponents for multiple in multiples]
            ticks = [value for value in values if low <= value <= high]
            if len(ticks) >= self.MIN_TICKS:
                return ticks
        linear = MaxNLocator(self.max_ticks, min_n_ticks=2).tick_values(low, high)
        return [float(value) for value in linear if low <= value <= high]


def set_log_scale(axes: Axes, axis_name: Literal["x", "y"] = "y", *, narrow: bool = False) -> None:
    """Make an axis logarithmic with plain tick labels: 0.01, 0.1, 1.

    Args:
        narrow: label fewer ticks, without minor ticks.
    """
    axes.set(**{f"{axis_name}scale": "log"})
    axis: Axis = getattr(axes, f"{axis_name}axis")
    axis.set_major_locator(LogTickLocator(4 if narrow else 6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_log_tick(value)))
    axis.set_minor_formatter(NullFormatter())
    if narrow:
        axis.set_minor_locator(NullLocator())
