"""Reliability diagrams: accuracy against confidence."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.figures.base import make_panels
from ducats.report.figures.render import render_svg
from ducats.report.figures.style import DASHED_LINE, TEXT_COLOUR, LineStyle, format_compact
from ducats.report.figures.summary_stats import MeanStd, pool_reliability_bins
from ducats.report.method_results import counted_runs, method_names
from ducats.report.run_kinds import CLASSIFICATION, RunKind
from ducats.report.run_reader import Run
from ducats.runfolder.records import Record, finite_number
from ducats.utils.findings import pluralise

MAX_STAGES = 6  # diagrams of a run; of more stages, evenly spaced ones are shown
PANELS_PER_ROW = 3
TEMPERATURE_SCALING_COLOUR = "#d55e00"


def plot_reliability(axes: Axes, records: Sequence[Mapping[str, Any]], line_style: LineStyle) -> None:
    """Plot a point per bin of confidence, pooled over records, with faint bars for the counts.

    Points of bins with few predictions, which are unreliable, are small.
    """
    bins = pool_reliability_bins(records)
    total = sum(b.count for b in bins)
    n_bins = max((len(r["reliability"]["upper"]) for r in records if "reliability" in r), default=1)
    x, y = [100 * b.confidence for b in bins], [100 * b.accuracy for b in bins]
    shares = [b.count / total for b in bins]
    axes.plot([0, 100], [0, 100], color=TEXT_COLOUR, linewidth=0.9, linestyle=DASHED_LINE, alpha=0.7)
    bar_style: dict[str, Any] = {"color": TEXT_COLOUR, "alpha": 0.13, "linewidth": 0}
    axes.bar(x, [100 * share for share in shares], width=70 / n_bins, **bar_style)
    axes.vlines(x, y, x, color=line_style.colour, alpha=0.6, linewidth=1.2)
    sizes = [(2.5 + 6 * math.sqrt(share)) ** 2 for share in shares]
    point_style: dict[str, Any] = {
        "marker": line_style.marker,
        "linewidths": 0,
        "zorder": 3,
        "clip_on": False,
    }
    axes.scatter(x, y, s=sizes, color=line_style.colour, **point_style)
    axes.set(xlim=(0, 102), ylim=(0, 104))
    axes.set_xticks([0, 50, 100])


def draw_method_reliability(runs: Sequence[Run], method: str, line_style: LineStyle, id_prefix: str) -> str:
    """Draw the diagrams of a method's first and last stage, pooled over seeds."""
    stages = [(run.stages[0], run.stages[-1]) for run in counted_runs(runs, method)]
    panels = [[first for first, _ in stages], [last for _, last in stages]]
    if all(first is last for first, last in stages):
        panels = panels[1:]
    format_labels = _label_format(runs[0].kind)

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
        for axes, records in zip(row, panels, strict=False):
            plot_reliability(axes, records, line_style)
            labels = MeanStd.from_values([record["labels"] for record in records]).mean
            error = MeanStd.from_known(finite_number(record, "ece") for record in records)
            error_text = f", error {100 * error.mean:.1f}%" if error else ""
            axes.set_title(f"{pluralise(labels, 'label', format_labels(labels))}{error_text}")
            axes.set_xlabel("confidence, %")
        for axes in row[len(panels) :]:
            axes.set_visible(False)
        row[0].set_ylabel("accuracy, %")

    svg_id = f"{id_prefix}reliability-{method_names(runs).index(method)}"
    return render_svg(draw, (4.3, 2.5), svg_id, f"Reliability of {method}: accuracy against confidence")


def draw_stage_reliability(
    stages: Sequence[Record], kind: RunKind, line_style: LineStyle, id_prefix: str
) -> str:
    """Draw a diagram per stage of a run, with temperature scaling as hollow squares where there is one.

    Empty if no stage recorded its predictions.
    """
    shown_stages = evenly_spaced_stages([stage for stage in stages if "reliability" in stage], MAX_STAGES)
    if not shown_stages:
        return ""
    n_columns = min(PANELS_PER_ROW, len(shown_stages))
    n_rows = math.ceil(len(shown_stages) / n_columns)
    format_labels = _label_format(kind)

    def draw(figure: Figure) -> None:
        grid = make_panels(figure, len(shown_stages), n_columns, share_axes=True)
        for index, (axes, stage) in enumerate(zip(grid, shown_stages, strict=True)):
            plot_reliability(axes, [stage], replace(line_style, marker="o"))
            scaled = pool_reliability_bins([stage.get("temperature_scaled", {})])
            x, y = [100 * b.confidence for b in scaled], [100 * b.accuracy for b in scaled]
            square_style: dict[str, Any] = {"markerfacecolor": "none", "markersize": 4, "alpha": 0.9}
            axes.plot(x, y, "s", color=TEMPERATURE_SCALING_COLOUR, **square_style)
            error = finite_number(stage, "ece")
            error_text = f": {100 * error:.1f}%" if error is not None else ""
            labels_text = pluralise(stage["labels"], "label", format_labels(stage["labels"]))
            axes.set_title(f"{labels_text}{error_text}", fontsize=9)
            if index % n_columns == 0:
                axes.set_ylabel("accuracy, %")
            if index + n_columns >= len(shown_stages):
                axes.set_xlabel("confidence, %")

    title = f"Accuracy against confidence at {pluralise(len(shown_stages), 'stage')}"
    return render_svg(draw, (2.3 * n_columns + 0.4, 2.2 * n_rows + 0.2), f"{id_prefix}reliability", title)


def evenly_spaced_stages(stages: Sequence[Record], max_stages: int) -> list[Record]:
    """Return at most ``max_stages`` evenly spaced stages, including the first and the last."""
    if len(stages) <= max_stages:
        return list(stages)
    return [stages[round(index * (len(stages) - 1) / (max_stages - 1))] for index in range(max_stages)]


def _label_format(kind: RunKind) -> Callable[[float], str]:
    return "{:,.0f}".format if kind == CLASSIFICATION else format_compact
