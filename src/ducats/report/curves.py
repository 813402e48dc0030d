"""Figures of a report as SVG: text and axes take the page's text colour; the output is deterministic."""

import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ducats.figures.numbers import Spread, number, reliability
from ducats.figures.paper import svg
from ducats.figures.style import DASHES, INK, Look, log_scale, looks, short
from ducats.records import Record
from ducats.report.kinds import IMAGES
from ducats.report.read import Run
from ducats.report.tables import counted, curve, methods

__all__ = ["Look", "looks", "loss_curves", "over_labels", "reliability_diagram", "term_looks"]

TERM_COLOURS = (
    "#4477aa",
    "#cc6677",
    "#228833",
    "#aa7744",
    "#aa3377",
    "#66ccee",
)  # Paul Tol's colours, none of which is a method's colour
WIDE = 30  # the x axis is logarithmic if the largest budget is over 30 times the smallest


def term_looks(runs: Sequence[Run]) -> dict[str, Look]:
    """Return a line style per loss ``stream/term``: the colour shows the term, the dash the image stream."""
    names = dict.fromkeys(name for run in runs for epoch in run.epochs for name in epoch.get("losses", {}))
    streams = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    terms = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    found = {}
    for name in names:
        stream, _, term = name.rpartition("/")
        colour = TERM_COLOURS[terms.index(term) % len(TERM_COLOURS)]
        found[name] = Look(colour, dash=DASHES[streams.index(stream) % len(DASHES)])
    return found


def over_labels(
    runs: Sequence[Run],
    key: str,
    title: str,
    over: str = "labels",
    *,
    look: Mapping[str, Look] | None = None,
    prefix: str = "",
) -> str:
    """Draw a metric in percent over the labels spent: mean, band of one standard deviation, point per seed.

    Args:
        runs: runs of one kind.
        key: key of the metric in the stage records.
        title: name of the metric.
        over: key of the x values, ``labels`` or ``clicks``.
        look: line styles of the methods to draw; None draws all methods in default styles.
        prefix: prefix of the SVG ids, for pages with several such figures; empty uses the kind's prefix.
    """
    look = looks(methods(runs)) if look is None else look
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

    name = f"{prefix or kind.prefix}over-{over}-{key}"
    return svg(draw, (4.9, 3.4), name, f"{title} over {axis}, one line per method")


def reliability_diagram(runs: Sequence[Run], method: str) -> str:
    """Draw accuracy against confidence at the first and the last stage, with faint bars for the counts."""
    look = looks(methods(runs))[method]
    stages = [(run.stages[0], run.stages[-1]) for run in counted(runs, method)]
    ends = [[first for first, _ in stages], [last for _, last in stages]]
    panels = ends if any(first is not last for first, last in stages) else ends[1:]

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
        for axes, records in zip(row, panels, strict=False):
            _reliability(axes, records, look, _few if runs[0].kind == IMAGES else short)
        for axes in row[len(panels) :]:
            axes.set_visible(False)
        row[0].set_ylabel("accuracy, %")

    place = methods(runs).index(method)
    return svg(
        draw,
        (4.3, 2.5),
        f"{runs[0].kind.prefix}reliability-{place}",
        f"Reliability of {method}: accuracy against confidence",
    )


def loss_curves(runs: Sequence[Run], method: str, *, prefix: str = "") -> str:
    """Draw mean training losses over epochs, averaged over seeds; thin vertical lines mark new labels."""
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
            log_scale(axes)

    place = methods(runs).index(method)
    name = f"{prefix or runs[0].kind.prefix}losses-{place}"
    return svg(draw, (4.3, 2.5), name, f"Training losses of {method} over epochs")


def _seed_points(axes: Axes, group: Sequence[Run], key: str, look: Look, over: str) -> None:
    for run in group:
        pairs = [(number(stage, over), number(stage, key)) for stage in run.stages]
        known = [(spent, 100 * value) for spent, value in pairs if spent is not None and value is not None]
        if known:
            x, y = zip(*known, strict=True)
            # Unfinished runs have hollow markers and are not part of the mean.
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
    if len(points) == 1:  # a method without labels is a horizontal reference line
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
        # Bins with few predictions get small points.
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
    """Format an x axis of large counts; make it symlog if the counts differ by more than ``WIDE`` times."""
    positive = [value for value in spent if value > 0]
    if positive and max(positive) > WIDE * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.2 * min(positive), 1.5 * max(positive))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _few(count: float) -> str:
    return f"{count:,.0f}"
