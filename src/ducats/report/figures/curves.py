"""Curves: scores over labels and settings, losses over epochs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ducats.report.figures.render import render_svg
from ducats.report.figures.style import (
    DASHED_LINE,
    DASHES,
    GREY_STYLE,
    TEXT_COLOUR,
    LineStyle,
    assign_line_styles,
    format_compact,
    set_log_scale,
)
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import mean_curve, method_names
from ducats.report.method_tables.build import FULLY_SUPERVISED
from ducats.report.run_kinds import CLASSIFICATION, capitalise
from ducats.report.run_reader import Run
from ducats.runfolder.records import audit_intervals, finite_number
from ducats.utils.findings import pluralise

# Paul Tol's colours, none of which is a method's colour.
TERM_COLOURS = ("#4477aa", "#cc6677", "#228833", "#aa7744", "#aa3377", "#66ccee")
CURVE_SIZE = (4.9, 3.4)  # inches
MAX_LINEAR_AXIS_RATIO = 30  # the x axis is logarithmic if the largest budget is over 30 times the smallest


@dataclass(frozen=True)
class ScoreCurve:
    """Scores in percent by x value."""

    label: str
    stats: Mapping[float, MeanStd]  # mean and deviation by x, ascending
    scores: Mapping[float, Sequence[float]]  # scores of all seeds by x

    @classmethod
    def from_scores(cls, label: str, scores: Mapping[float, Sequence[float]]) -> "ScoreCurve":
        """Create a curve from the scores of all runs."""
        ascending = dict(sorted(scores.items()))
        return cls(label, {x: MeanStd.from_values(values) for x, values in ascending.items()}, ascending)

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return sum(len(values) for values in self.scores.values())

    def describe(self, x_name: str) -> str:
        """Describe the curve as text."""
        return f"{self.label}: " + ", ".join(
            f"{p.mean:.1f}% at {x_name} {x:g} ({pluralise(len(self.scores[x]), 'seed')})"
            for x, p in self.stats.items()
        )


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure as SVG text, and its caption."""

    caption: str
    svg: str


def plot_score_curves(axes: Axes, curves: Sequence[ScoreCurve]) -> None:
    """Plot the mean of each curve, a band of one deviation and each seed."""
    line_styles = assign_line_styles([str(n) for n in range(len(curves))]).values()
    for curve, line_style in zip(curves, line_styles, strict=True):
        for x, values in curve.scores.items():
            _plot_seeds(axes, [x] * len(values), values, line_style)
        _plot_mean(axes, list(curve.stats), list(curve.stats.values()), line_style, label=curve.label)


def draw_learning_curves(
    runs: Sequence[Run], line_styles: Mapping[str, LineStyle], id_prefix: str, *, has_clicks: bool
) -> tuple[CaptionedFigure, ...]:
    """Draw the score over labels, over clicks if they differ from labels, and the calibration error."""
    kind = runs[0].kind
    score_title = kind.measure(kind.headline_metric).title.removesuffix(" %")
    axes = {"labels": kind.labels_axis} | ({"clicks": "clicks"} if has_clicks else {})
    curves = [
        (f"{score_title} over {axis} (higher is better)", kind.headline_metric, kind.score_name, x_key)
        for x_key, axis in axes.items()
    ]
    curves.append(
        (f"Calibration error over {kind.labels_axis} (lower is better)", "ece", "calibration error", "labels")
    )
    return tuple(
        CaptionedFigure(caption, draw_learning_curve(runs, key, title, x_key, line_styles, id_prefix))
        for caption, key, title, x_key in curves
    )


def draw_audit_curves(run: Run, line_style: LineStyle, id_prefix: str) -> tuple[CaptionedFigure, ...]:
    """Draw what the audit found over labels, with its intervals; nothing if there is no audit."""
    labels = {stage["epoch"]: float(stage["labels"]) for stage in run.stages}
    audits = [(labels[audit["epoch"]], audit) for audit in run.audits if audit["epoch"] in labels]
    names = audit_intervals(audits[0][1]) if audits else {}
    curves = {name: [(x, audit_intervals(audit)[name]) for x, audit in audits] for name in names}
    return tuple(
        _draw_interval_curve(name, points, run.kind.labels_axis, line_style, id_prefix)
        for name, points in curves.items()
    )


def _draw_interval_curve(
    name: str,
    points: Sequence[tuple[float, Mapping[str, float]]],
    axis: str,
    line_style: LineStyle,
    id_prefix: str,
) -> CaptionedFigure:
    """Draw estimates and intervals of the audit over labels."""
    title = f"{name} by the audit"

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=axis, ylabel=f"{title}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        x = [n_labels for n_labels, _ in points]
        low, high, estimate = ([100 * one[end] for _, one in points] for end in ("low", "high", "estimate"))
        axes.fill_between(x, low, high, color=line_style.colour, alpha=0.16, linewidth=0)
        axes.errorbar(
            x,
            estimate,
            yerr=[
                [a - b for a, b in zip(estimate, low, strict=True)],
                [b - a for a, b in zip(estimate, high, strict=True)],
            ],
            color=line_style.colour,
            marker=line_style.marker,
            capsize=3,
        )
        axes.set_ylim(top=100)

    caption = (
        f"{capitalise(name)} over {axis}, by the audit: estimates and intervals that hold together with 95 %"
    )
    svg_id = f"{id_prefix}audit-{name.replace(' ', '-')}"
    return CaptionedFigure(
        caption, render_svg(draw, CURVE_SIZE, svg_id, f"{title} over {axis}, with intervals")
    )


def draw_learning_curve(
    runs: Sequence[Run],
    metric_key: str,
    title: str,
    x_key: str,
    line_styles: Mapping[str, LineStyle],
    id_prefix: str,
) -> str:
    """Draw a metric in percent over the labels spent: mean, band of one standard deviation, point per seed.

    Args:
        x_key: ``labels`` or ``clicks``.
        line_styles: of the methods to draw.
    """
    kind = runs[0].kind
    axis = kind.labels_axis if x_key == "labels" else x_key

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=axis, ylabel=f"{title}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        for method, line_style in line_styles.items():
            for run in [run for run in runs if run.method == method]:
                pairs = [
                    (finite_number(stage, x_key), finite_number(stage, metric_key)) for stage in run.stages
                ]
                points = [(x, 100 * y) for x, y in pairs if x is not None and y is not None]
                if points:  # unfinished runs have hollow markers and are not part of the mean
                    x, y = zip(*points, strict=True)
                    _plot_seeds(axes, x, y, line_style, hollow=not run.finished)
            x_values, stats = _mean_percent(runs, method, metric_key, x_key)
            _plot_mean(axes, x_values, stats, line_style)
        if metric_key == "ece":
            axes.set_ylim(bottom=0)
        if kind != CLASSIFICATION:
            counts = [finite_number(stage, x_key) or 0.0 for run in runs for stage in run.stages]
            _format_count_axis(axes, counts)

    svg_id = f"{id_prefix}over-{x_key}-{metric_key}"
    return render_svg(draw, CURVE_SIZE, svg_id, f"{title} over {axis}, one line per method")


def draw_task_curves(
    runs: Sequence[Run], line_styles: Mapping[str, LineStyle], svg_id: str, title: str
) -> str:
    """Draw the ranking measure of one task over labels: a line and a band for each method in ``line_styles``.

    Args:
        runs: finished runs of one task and kind.
        line_styles: line styles of the highlighted methods; the others are faint lines behind them.
        title: text alternative of the figure.
    """
    kind = runs[0].kind

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=kind.labels_axis, ylabel=f"{kind.score_name}, %")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if kind != CLASSIFICATION:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))
        for method in sorted(method_names(runs), key=lambda name: name in line_styles):
            x, stats = _mean_percent(runs, method, kind.headline_metric)
            style = line_styles.get(method, GREY_STYLE)
            alpha, width = (1.0, 1.8) if method in line_styles else (0.35, 1.0)
            if FULLY_SUPERVISED in method or len(stats) == 1:  # all labels or none: a horizontal line
                _plot_reference(axes, stats[-1].mean, style, min(alpha, 0.8))
                continue
            y = [point.mean for point in stats]
            axes.plot(
                x, y, color=style.colour, marker=style.marker, markersize=5, alpha=alpha, linewidth=width
            )
            if method in line_styles:
                _fill_deviation(axes, x, stats, style)

    return render_svg(draw, (4.0, 2.9), svg_id, title)


def draw_mean_over_tasks(
    runs_by_task: Sequence[Sequence[Run]], line_styles: Mapping[str, LineStyle], svg_id: str
) -> str:
    """Draw the mean over tasks, stage by stage; empty if no method has the same stages in every task."""
    kind = runs_by_task[0][0].kind
    lines: dict[str, list[tuple[float, float]]] = {}
    for method in line_styles:
        curves = [mean_curve(runs, method, kind.headline_metric) for runs in runs_by_task]
        if len({len(curve) for curve in curves}) == 1 and curves[0]:
            lines[method] = [
                (fmean(point.n_spent for point in stage), fmean(100 * point.value.mean for point in stage))
                for stage in zip(*curves, strict=True)
            ]
    if not lines:
        return ""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlabel=f"{kind.labels_axis} per task", ylabel=f"{kind.score_name}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if kind != CLASSIFICATION:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_compact(value)))
        for method, points in lines.items():
            x, y = zip(*points, strict=True)
            if FULLY_SUPERVISED in method or len(points) == 1:
                _plot_reference(axes, y[-1], line_styles[method], 0.8)
                continue
            _plot_mean(axes, x, [MeanStd(value, None) for value in y], line_styles[method])

    title = f"{kind.score_name} over {kind.labels_axis}, mean over {pluralise(len(runs_by_task), 'task')}"
    return render_svg(draw, CURVE_SIZE, svg_id, title)


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


def draw_loss_curves(runs: Sequence[Run], method: str, id_prefix: str) -> str:
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
            style = line_styles[name]
            axes.plot(list(line), list(line.values()), color=style.colour, linestyle=style.dash)
        values = [value for line in lines.values() for value in line.values() if not math.isnan(value)]
        if values and min(values) > 0:
            set_log_scale(axes)

    svg_id = f"{id_prefix}losses-{method_names(runs).index(method)}"
    return render_svg(draw, (4.3, 2.5), svg_id, f"Training losses of {method} over epochs")


def _mean_percent(
    runs: Sequence[Run], method: str, metric_key: str, x_key: str = "labels"
) -> tuple[list[float], list[MeanStd]]:
    points = mean_curve(runs, method, metric_key, x_key)
    percent = [
        MeanStd(100 * p.value.mean, None if p.value.std is None else 100 * p.value.std) for p in points
    ]
    return [point.n_spent for point in points], percent


def _plot_seeds(
    axes: Axes, x: Sequence[float], y: Sequence[float], line_style: LineStyle, *, hollow: bool = False
) -> None:
    axes.plot(
        x,
        y,
        line_style.marker,
        color=line_style.colour,
        markerfacecolor="none" if hollow else line_style.colour,
        markersize=4,
        alpha=0.45,
        linestyle="",
    )


def _plot_mean(
    axes: Axes, x: Sequence[float], stats: Sequence[MeanStd], line_style: LineStyle, label: str | None = None
) -> None:
    """Plot means with a band of one deviation; a single point is also a horizontal reference line."""
    means = [point.mean for point in stats]
    axes.plot(x, means, color=line_style.colour, marker=line_style.marker, markersize=6, label=label)
    if len(means) == 1:
        _plot_reference(axes, means[0], line_style, 0.8)
    _fill_deviation(axes, x, stats, line_style)


def _plot_reference(axes: Axes, y: float, line_style: LineStyle, alpha: float) -> None:
    axes.axhline(y, color=line_style.colour, linewidth=1.1, linestyle=DASHED_LINE, alpha=alpha)


def _fill_deviation(axes: Axes, x: Sequence[float], stats: Sequence[MeanStd], line_style: LineStyle) -> None:
    if any(point.std for point in stats):
        low = [point.mean - (point.std or 0.0) for point in stats]
        high = [point.mean + (point.std or 0.0) for point in stats]
        axes.fill_between(x, low, high, color=line_style.colour, alpha=0.16, linewidth=0)


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
