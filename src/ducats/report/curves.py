"""Figures of a report as SVG text: the ink follows the page's colours, the same runs give the same bytes."""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ducats.records import Record
from ducats.report.kinds import IMAGES
from ducats.report.read import Run, number
from ducats.report.tables import Spread, counted, curve, methods, reliability

# Okabe and Ito's colours, which colour-blind readers tell apart, less yellow (unseen on white) and black
# (unseen on black). Markers tell methods apart once more, and in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
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
TERM_COLOURS = (
    "#4477aa",
    "#cc6677",
    "#228833",
    "#aa7744",
    "#aa3377",
    "#66ccee",
)  # Paul Tol's: not a method's
INK = "#010203"  # a stand-in: becomes `currentColor`, so that lines and letters follow light and dark
WIDE = 30  # budgets further apart than that share no linear axis
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ducats",
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True)
class Look:
    """How a line is drawn, in every figure and in the legend.

    Args:
        colour: of line and marker.
        marker: as matplotlib calls it.
        shape: the same marker as a path in a box of 28 by 12.
        dash: of the line.
    """

    colour: str
    marker: str = ""
    shape: str = ""
    dash: str = "solid"

    @property
    def dash_array(self) -> str:
        """The dash as SVG writes it."""
        return DASH_ARRAYS[self.dash]


def looks(names: Sequence[str]) -> dict[str, Look]:
    """One look per method, by its place; 42 methods look different before one repeats."""
    found = {}
    for place, name in enumerate(names):
        marker, shape = MARKERS[place % len(MARKERS)]
        found[name] = Look(COLOURS[place % len(COLOURS)], marker, shape)
    return found


def term_looks(runs: Sequence[Run]) -> dict[str, Look]:
    """One look per loss ``stream/term``: the colour says which term, the dash which stream of images."""
    names = dict.fromkeys(name for run in runs for epoch in run.epochs for name in epoch.get("losses", {}))
    streams = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    terms = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    found = {}
    for name in names:
        stream, _, term = name.rpartition("/")
        colour = TERM_COLOURS[terms.index(term) % len(TERM_COLOURS)]
        found[name] = Look(colour, dash=DASHES[streams.index(stream) % len(DASHES)])
    return found


def over_labels(runs: Sequence[Run], key: str, title: str, over: str = "labels") -> str:
    """A measure in percent over what was spent: a mean line, a band of one deviation, a point per seed."""
    look = looks(methods(runs))
    kind = runs[0].kind
    axis = kind.axis if over == "labels" else over

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=axis, ylabel=f"{title}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for method in look:
            _seed_points(axes, [run for run in runs if run.method == method], key, look[method], over)
            _mean_line(axes, runs, method, key, look[method], over)
        if key == "ece":
            axes.set_ylim(bottom=0)
        if kind != IMAGES:
            _many(axes, [number(stage, over) or 0.0 for run in runs for stage in run.stages])

    name = f"{kind.prefix}over-{over}-{key}"
    return _svg(draw, (4.9, 3.4), name, f"{title} over {axis}, one line per method")


def reliability_diagram(runs: Sequence[Run], method: str) -> str:
    """Accuracy against confidence before the first and after the last labels, with the counts faint below."""
    look = looks(methods(runs))[method]
    stages = [(run.stages[0], run.stages[-1]) for run in counted(runs, method)]
    ends = [[first for first, _ in stages], [last for _, last in stages]]
    panels = ends if any(first is not last for first, last in stages) else ends[1:]

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
        for axes, records in zip(row, panels, strict=False):
            _reliability(axes, records, look, _few if runs[0].kind == IMAGES else _short)
        for axes in row[len(panels) :]:
            axes.set_visible(False)
        row[0].set_ylabel("accuracy, %")

    place = methods(runs).index(method)
    return _svg(
        draw,
        (4.3, 2.5),
        f"{runs[0].kind.prefix}reliability-{place}",
        f"Reliability of {method}: accuracy against confidence",
    )


def loss_curves(runs: Sequence[Run], method: str) -> str:
    """Mean training losses over epochs, averaged over seeds, one line per term; thin lines at labels."""
    group = [run for run in runs if run.method == method]
    look = term_looks(runs)
    lines = {name: _mean_losses(group, name) for name in look}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel="epoch", ylabel="mean loss")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for record in max(group, key=lambda run: len(run.stages)).stages[:-1]:
            axes.axvline(record["epoch"], color=INK, alpha=0.25, linewidth=0.7)
        for name, line in lines.items():
            axes.plot(list(line), list(line.values()), color=look[name].colour, linestyle=look[name].dash)
        values = [value for line in lines.values() for value in line.values() if not math.isnan(value)]
        if values and min(values) > 0:
            _log_scale(axes)

    place = methods(runs).index(method)
    name = f"{runs[0].kind.prefix}losses-{place}"
    return _svg(draw, (4.3, 2.5), name, f"Training losses of {method} over epochs")


def _seed_points(axes: Axes, group: Sequence[Run], key: str, look: Look, over: str) -> None:
    for run in group:
        pairs = [(number(stage, over), number(stage, key)) for stage in run.stages]
        known = [(spent, 100 * value) for spent, value in pairs if spent is not None and value is not None]
        if known:
            x, y = zip(*known, strict=True)
            # A hollow point says: this run is still under way, and in no mean.
            fill = look.colour if run.finished else "none"
            axes.plot(
                x,
                y,
                look.marker,
                color=look.colour,
                markerfacecolor=fill,
                markersize=4,
                alpha=0.45,
                linestyle="",
            )


def _mean_line(axes: Axes, runs: Sequence[Run], method: str, key: str, look: Look, over: str) -> None:
    points = curve(runs, method, key, over)
    x = [point.labels for point in points]
    y = [100 * point.value.mean for point in points]
    axes.plot(x, y, color=look.colour, marker=look.marker, markersize=6)
    if len(points) == 1:  # a method that buys nothing is a level to compare with
        axes.axhline(y[0], color=look.colour, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.8)
    deviations = [100 * (point.value.deviation or 0.0) for point in points]
    if any(deviations):
        low = [mean - deviation for mean, deviation in zip(y, deviations, strict=True)]
        high = [mean + deviation for mean, deviation in zip(y, deviations, strict=True)]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0)


def _reliability(axes: Axes, records: Sequence[Record], look: Look, amount: Callable[[float], str]) -> None:
    bins = reliability(records)
    total = sum(b.count for b in bins)
    upper = max((len(r["reliability"]["upper"]) for r in records if "reliability" in r), default=1)
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
    for b in bins:
        x, y, share = 100 * b.confidence, 100 * b.accuracy, b.count / total
        axes.bar(x, 100 * share, width=70 / upper, color=INK, alpha=0.13, linewidth=0)
        axes.vlines(x, y, x, color=look.colour, alpha=0.6, linewidth=1.2)
        # A bin of three predictions says little, so its point is small.
        axes.plot(x, y, look.marker, color=look.colour, markersize=2.5 + 6 * math.sqrt(share))
    labels = Spread.of([record["labels"] for record in records]).mean
    errors = [value for record in records if (value := number(record, "ece")) is not None]
    error = f", error {100 * Spread.of(errors).mean:.1f}%" if errors else ""
    axes.set(xlim=(0, 102), ylim=(0, 104), xlabel="confidence, %")
    axes.set_title(f"{amount(labels)} labels{error}")
    axes.set_xticks([0, 50, 100])


def _mean_losses(group: Sequence[Run], name: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in group:
        for record in run.epochs:
            if name in record.get("losses", {}):
                loss = number(record["losses"], name)
                values.setdefault(record["epoch"], []).append(math.nan if loss is None else loss)
    return {epoch: Spread.of(losses).mean for epoch, losses in sorted(values.items())}


def _many(axes: Axes, spent: Sequence[float]) -> None:
    """Make an axis of up to millions readable, also where the largest budget dwarfs the others."""
    positive = [value for value in spent if value > 0]
    if positive and max(positive) > WIDE * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.2 * min(positive), 1.5 * max(positive))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _few(count: float) -> str:
    return f"{count:,.0f}"


def _short(count: float) -> str:
    """A count in little room: 655360 is 655k."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:g}"


def _log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _svg(draw: Callable[[Figure], None], size: tuple[float, float], key: str, title: str) -> str:
    """Draw an SVG element that can stand beside others in a page: no date, no links, ids of its own."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a reader's own matplotlibrc must not change a report
        matplotlib.rcParams.update(STYLE)
        # The browser sets the letters; that matplotlib's font lacks one of them does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _for_a_page(buffer.getvalue(), key, title)


def _for_a_page(text: str, key: str, title: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = (
        re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
        .replace("xlink:href", "href")
        .replace(INK, "currentColor")
    )
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{key}-", text)
    start = text.index(">")
    head = re.sub(r' (width|height|version)="[^"]*"', "", text[:start])
    return f'{head} role="img" aria-label="{html.escape(title)}"{text[start:]}'
