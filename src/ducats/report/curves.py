"""Figures of a report as SVG: text and axes take the page's text colour; the output is deterministic."""

import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ducats.report.figures.render import render_svg
from ducats.report.figures.style import (
    DASHES,
    TEXT_COLOUR,
    LineStyle,
    assign_line_styles,
    format_compact,
    set_log_scale,
)
from ducats.report.figures.summary_stats import MeanStd, finite_number, pool_reliability_bins
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.report.tables import counted_runs, mean_curve, method_names
from ducats.runfolder.records import Record

__all__ = [
    "LineStyle",
    "assign_line_styles",
    "draw_learning_curve",
    "draw_loss_curves",
    "draw_method_reliability",
    "loss_term_styles",
]

# Paul Tol's colours, none of which is a method's colour.
TERM_COLOURS = ("#4477aa", "#cc6677", "#228833", "#aa7744", "#aa3377", "#66ccee")
MAX_LINEAR_AXIS_RATIO = 30  # the x axis is logarithmic if the largest budget is over 30 times the smallest


def loss_term_styles(runs: Sequence[Run]) -> dict[str, LineStyle]:
    """Return a line style per loss ``stream/term``: the colour shows the term, the dash the image stream."""
    names = dict.fromkeys(name for run in runs for epoch in run.epochs for name in epoch.get("losses", {}))
    streams = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    terms = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    styles = {}
    for name in names:
        stream, _, term = name.rpartition("/")
        colour = TERM_COLOURS[terms.index(term) % len(TERM_COLOURS)]
        styles[name] = LineStyle(colour, dash=DASHES[streams.index(stream) % len(DASHES)])
    return styles


def draw_learning_curve(
    runs: Sequence[Run],
    metric_key: str,
    title: str,
    x_key: str = "labels",
    *,
    line_styles: Mapping[str, LineStyle] | None = None,
    id_prefix: str = "",
) -> str:
    """Draw a metric in percent over the labels spent: mean, band of one standard deviation, point per seed.

    Args:
        runs: runs of one kind.
        metric_key: key of the metric in the stage records.
        title: name of the metric.
        x_key: key of the x values, ``labels`` or ``clicks``.
        line_styles: line styles of the methods to draw; None draws all methods in default styles.
        id_prefix: prefix of the SVG ids, for pages with several such figures; empty uses the kind's prefix.
    """
    line_styles = assign_line_styles(method_names(runs)) if line_styles is None else line_styles
    kind = runs[0].kind
    axis = kind.labels_axis if x_key == "labels" else x_key

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=axis, ylabel=f"{title}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for method in line_styles:
            _seed_points(
                axes, [run for run in runs if run.method == method], metric_key, line_styles[method], x_key
            )
            _mean_line(axes, runs, method, metric_key, line_styles[method], x_key)
        if metric_key == "ece":
            axes.set_ylim(bottom=0)
        if kind != CLASSIFICATION:
            _format_count_axis(
                axes, [finite_number(stage, x_key) or 0.0 for run in runs for stage in run.stages]
            )

    svg_id = f"{id_prefix or kind.id_prefix}over-{x_key}-{metric_key}"
    return render_svg(draw, (4.9, 3.4), svg_id, f"{title} over {axis}, one line per method")


def draw_method_reliability(runs: Sequence[Run], method: str) -> str:
    """Draw accuracy against confidence at the first and the last stage, with faint bars for the counts."""
    line_style = assign_line_styles(method_names(runs))[method]
    stages = [(run.stages[0], run.stages[-1]) for run in counted_runs(runs, method)]
    first_and_last = [[first for first, _ in stages], [last for _, last in stages]]
    panels = first_and_last if any(first is not last for first, last in stages) else first_and_last[1:]

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
        for axes, records in zip(row, panels, strict=False):
            _draw_reliability_panel(
                axes, records, line_style, _format_count if runs[0].kind == CLASSIFICATION else format_compact
            )
        for axes in row[len(panels) :]:
            axes.set_visible(False)
        row[0].set_ylabel("accuracy, %")

    position = method_names(runs).index(method)
    return render_svg(
        draw,
        (4.3, 2.5),
        f"{runs[0].kind.id_prefix}reliability-{position}",
        f"Reliability of {method}: accuracy against confidence",
    )


def draw_loss_curves(runs: Sequence[Run], method: str, *, id_prefix: str = "") -> str:
    """Draw mean training losses over epochs, averaged over seeds; thin vertical lines mark new labels."""
    group = [run for run in runs if run.method == method]
    line_styles = loss_term_styles(runs)
    lines = {name: _mean_losses(group, name) for name in line_styles}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel="epoch", ylabel="mean loss")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for record in max(group, key=lambda run: len(run.stages)).stages[:-1]:
            axes.axvline(record["epoch"], color=TEXT_COLOUR, alpha=0.25, linewidth=0.7)
        for name, line in lines.items():
            axes.plot(
                list(line),
                list(line.values()),
                color=line_styles[name].colour,
                linestyle=line_styles[name].dash,
            )
        values = [value for line in lines.values() for value in line.values() if not math.isnan(value)]
        if values and min(values) > 0:
            set_log_scale(axes)

    position = method_names(runs).index(method)
    svg_id = f"{id_prefix or runs[0].kind.id_prefix}losses-{position}"
    return render_svg(draw, (4.3, 2.5), svg_id, f"Training losses of {method} over epochs")


def _seed_points(
    axes: Axes, group: Sequence[Run], metric_key: str, line_style: LineStyle, x_key: str
) -> None:
    for run in group:
        pairs = [(finite_number(stage, x_key), finite_number(stage, metric_key)) for stage in run.stages]
        percent_points = [
            (x_value, 100 * value) for x_value, value in pairs if x_value is not None and value is not None
        ]
        if percent_points:
            x, y = zip(*percent_points, strict=True)
            # Unfinished runs have hollow markers and are not part of the mean.
            fill = line_style.colour if run.finished else "none"
            axes.plot(
                x,
                y,
                line_style.marker,
                color=line_style.colour,
                markerfacecolor=fill,
                markersize=4,
                alpha=0.45,
                linestyle="",
            )


def _mean_line(
    axes: Axes, runs: Sequence[Run], method: str, metric_key: str, line_style: LineStyle, x_key: str
) -> None:
    points = mean_curve(runs, method, metric_key, x_key)
    x = [point.n_spent for point in points]
    y = [100 * point.value.mean for point in points]
    axes.plot(x, y, color=line_style.colour, marker=line_style.marker, markersize=6)
    if len(points) == 1:  # a method without labels is a horizontal reference line
        axes.axhline(y[0], color=line_style.colour, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.8)
    deviations = [100 * (point.value.std or 0.0) for point in points]
    if any(deviations):
        low = [mean - deviation for mean, deviation in zip(y, deviations, strict=True)]
        high = [mean + deviation for mean, deviation in zip(y, deviations, strict=True)]
        axes.fill_between(x, low, high, color=line_style.colour, alpha=0.16, linewidth=0)


def _draw_reliability_panel(
    axes: Axes, records: Sequence[Record], line_style: LineStyle, format_count: Callable[[float], str]
) -> None:
    bins = pool_reliability_bins(records)
    total = sum(b.count for b in bins)
    n_bins = max((len(r["reliability"]["upper"]) for r in records if "reliability" in r), default=1)
    axes.plot([0, 100], [0, 100], color=TEXT_COLOUR, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
    for b in bins:
        x, y, share = 100 * b.confidence, 100 * b.accuracy, b.count / total
        axes.bar(x, 100 * share, width=70 / n_bins, color=TEXT_COLOUR, alpha=0.13, linewidth=0)
        axes.vlines(x, y, x, color=line_style.colour, alpha=0.6, linewidth=1.2)
        # Bins with few predictions get small points.
        axes.plot(x, y, line_style.marker, color=line_style.colour, markersize=2.5 + 6 * math.sqrt(share))
    labels = MeanStd.from_values([record["labels"] for record in records]).mean
    errors = [value for record in records if (value := finite_number(record, "ece")) is not None]
    error = f", error {100 * MeanStd.from_values(errors).mean:.1f}%" if errors else ""
    axes.set(xlim=(0, 102), ylim=(0, 104), xlabel="confidence, %")
    axes.set_title(f"{format_count(labels)} labels{error}")
    axes.set_xticks([0, 50, 100])


def _mean_losses(group: Sequence[Run], name: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for run in group:
        for record in run.epochs:
            if name in record.get("losses", {}):
                loss = finite_number(record["losses"], name)
                values.setdefault(record["epoch"], []).append(math.nan if loss is None else loss)
    return {epoch: MeanStd.from_values(losses).mean for epoch, losses in sorted(values.items())}


def _format_count_axis(axes: Axes, x_values: Sequence[float]) -> None:
    """Format an x axis of large counts; make it symlog if their ratio exceeds ``MAX_LINEAR_AXIS_RATIO``."""
    positive = [value for value in x_values if value > 0]
    if positive and max(positive) > MAX_LINEAR_AXIS_RATIO * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.2 * min(positive), 1.5 * max(positive))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))


def _format_count(count: float) -> str:
    return f"{count:,.0f}"
