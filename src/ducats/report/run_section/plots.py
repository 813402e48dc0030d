"""Figures of a run section, as SVG text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ducats.report.figures.render import render_svg
from ducats.report.figures.style import TEXT_COLOUR, LineStyle, format_compact
from ducats.report.figures.summary_stats import finite_number, pool_reliability_bins
from ducats.report.run_kinds import CLASSIFICATION, RunKind
from ducats.report.run_reader import Run
from ducats.report.run_section.class_results import ClassResults
from ducats.runfolder.records import Record

MAX_RELIABILITY_PANELS = 6  # reliability diagrams; of more stages, evenly spaced ones are shown
TEMPERATURE_SCALING_COLOUR = "#d55e00"
PANELS_PER_ROW = 3  # reliability diagrams in a row


def draw_class_results(class_results: ClassResults, line_style: LineStyle, id_prefix: str) -> str:
    """Draw each class before (hollow point) and after (filled point), the largest gain on top."""
    rows = [row for row in class_results.shown if row.after is not None]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, row in enumerate(rows):
            assert row.after is not None
            if row.before is not None:
                ends = [100 * row.before, 100 * row.after]
                axes.plot(ends, [index, index], color=line_style.colour, alpha=0.5, linewidth=2.5)
                axes.plot(ends[0], index, "o", color=line_style.colour, markerfacecolor="none", markersize=6)
            axes.plot(100 * row.after, index, "o", color=line_style.colour, markersize=6)
        axes.set(xlabel=f"{class_results.metric_name}, %", ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(range(len(rows)), [_shorten(row.name) for row in rows])
        axes.grid(axis="y", alpha=0.06)

    size = (4.9, 0.9 + 0.24 * len(rows))
    metric_name = class_results.metric_name
    title = f"{metric_name} of each class before the first labels (hollow) and after the last (filled)"
    return render_svg(draw, size, f"{id_prefix}classes", title)


def draw_reliability_diagrams(
    stages: Sequence[Record], kind: RunKind, line_style: LineStyle, id_prefix: str
) -> str:
    """Draw accuracy against confidence at each stage, with temperature scaling where there is one."""
    shown_stages = evenly_spaced_stages(
        [stage for stage in stages if "reliability" in stage], MAX_RELIABILITY_PANELS
    )
    n_columns = min(PANELS_PER_ROW, len(shown_stages))
    n_rows = math.ceil(len(shown_stages) / n_columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes, stage in zip(panels, shown_stages, strict=False):
            _draw_reliability_panel(axes, stage, kind, line_style)
        for axes in panels[len(shown_stages) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("accuracy, %")
        for index, axes in enumerate(panels[: len(shown_stages)]):
            if index + n_columns >= len(shown_stages):
                axes.set_xlabel("confidence, %")
                axes.tick_params(labelbottom=True)

    title = f"Accuracy against confidence at {len(shown_stages)} stages"
    return render_svg(draw, (2.3 * n_columns + 0.4, 2.2 * n_rows + 0.2), f"{id_prefix}reliability", title)


def _draw_reliability_panel(
    axes: Axes, stage: Mapping[str, Any], kind: RunKind, line_style: LineStyle
) -> None:
    axes.plot([0, 100], [0, 100], color=TEXT_COLOUR, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
    bins = pool_reliability_bins([stage])
    total = sum(b.count for b in bins)
    x, y = [100 * b.confidence for b in bins], [100 * b.accuracy for b in bins]
    shares = [b.count / total for b in bins]
    width = 70 / len(stage["reliability"]["upper"])
    axes.bar(x, [100 * share for share in shares], width=width, color=TEXT_COLOUR, alpha=0.13, linewidth=0)
    scaled_bins = (
        pool_reliability_bins([stage["temperature_scaled"]]) if "temperature_scaled" in stage else []
    )
    scaled_points = [[100 * getattr(b, field) for b in scaled_bins] for field in ("confidence", "accuracy")]
    axes.plot(
        *scaled_points, "s", color=TEMPERATURE_SCALING_COLOUR, markerfacecolor="none", markersize=4, alpha=0.9
    )
    axes.vlines(x, y, x, color=line_style.colour, alpha=0.6, linewidth=1.2)
    # The size of a point shows how many predictions are in its bin.
    axes.scatter(x, y, [(2.5 + 6 * math.sqrt(share)) ** 2 for share in shares], line_style.colour, zorder=3)
    labels = f"{stage['labels']:,}" if kind == CLASSIFICATION else format_compact(stage["labels"])
    error = finite_number(stage, "ece")
    axes.set(xlim=(0, 102), ylim=(0, 104))
    axes.set_title(f"{labels} labels" + (f": {100 * error:.1f}%" if error is not None else ""), fontsize=9)
    axes.set_xticks([0, 50, 100])


def draw_epoch_seconds(run: Run, line_style: LineStyle, id_prefix: str) -> str:
    """Draw the seconds of each epoch; thin lines mark new labels."""
    timed = [(e["epoch"], value) for e in run.epochs if (value := finite_number(e, "seconds")) is not None]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.bar([e for e, _ in timed], [s for _, s in timed], color=line_style.colour, alpha=0.75, width=0.8)
        for record in run.stages[:-1]:
            axes.axvline(record["epoch"] + 0.5, color=TEXT_COLOUR, alpha=0.25, linewidth=0.7)
        axes.set(xlabel="epoch", ylabel="training seconds")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    return render_svg(
        draw, (4.3, 2.5), f"{id_prefix}seconds", f"Training seconds of each of {len(timed)} epochs"
    )


def evenly_spaced_stages(stages: Sequence[Record], max_stages: int) -> list[Record]:
    """Return at most ``max_stages`` evenly spaced stages, including the first and the last."""
    if len(stages) <= max_stages:
        return list(stages)
    return [stages[round(index * (len(stages) - 1) / (max_stages - 1))] for index in range(max_stages)]


def _shorten(name: str, max_length: int = 22) -> str:
    return name if len(name) <= max_length else f"{name[: max_length - 1]}…"
