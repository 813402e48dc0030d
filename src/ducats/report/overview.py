"""The part of a page about all runs of one kind: table of methods, curves, settings and versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ducats.report import provenance
from ducats.report.class_iou import build_class_table
from ducats.report.figures.curves import (
    CaptionedFigure,
    draw_learning_curves,
    draw_loss_curves,
    loss_term_styles,
)
from ducats.report.figures.panels import FigurePanel, draw_multi_run_panels
from ducats.report.figures.reliability import draw_method_reliability
from ducats.report.figures.style import LineStyle, assign_line_styles
from ducats.report.method_results import (
    aggregate_methods,
    counted_runs,
    format_measure,
    method_names,
    method_table,
    visible_measures,
)
from ducats.report.page_budget import text_bytes
from ducats.report.run_kinds import ECE_MEASURE, SECONDS_MEASURE, Measure
from ducats.report.run_reader import Run
from ducats.report.table import EMPTY_CELL, Table, make_table, table_of
from ducats.report.tasks import collect_data_tasks, task_caption


@dataclass(frozen=True)
class Overview:
    """Results of several runs of one kind together. Figures are SVG text by method."""

    evaluation_note: str
    # Table of methods; None if the runs cover several tasks, as averages would mix them.
    results: Table | None
    learning_curves: tuple[CaptionedFigure, ...]
    classes: Table | None  # IoU by class and method; None if not recorded
    reliability: Mapping[str, str]
    losses: Mapping[str, str]
    loss_term_styles: Mapping[str, LineStyle]
    panels: tuple[FigurePanel, ...]
    line_styles: Mapping[str, LineStyle]  # of the methods

    @property
    def n_figure_bytes(self) -> int:
        """Size of all figures."""
        svgs = [*self.reliability.values(), *self.losses.values()]
        svgs += [curve.svg for curve in self.learning_curves]
        return text_bytes([*svgs, *(panel.svg for panel in self.panels)])


EMPTY_OVERVIEW = Overview("", None, (), None, {}, {}, {}, (), {})


def build_overview(runs: Sequence[Run]) -> Overview:
    """Return tables and figures about several runs of one kind and task."""
    rows, names, id_prefix = aggregate_methods(runs), method_names(runs), runs[0].kind.id_prefix
    line_styles = assign_line_styles(names)
    class_table = build_class_table(runs)
    has_clicks = any(measure.key == "clicks" for measure in visible_measures(rows))
    return Overview(
        evaluation_note=provenance.describe_evaluation(runs),
        results=method_table(rows, for_page=True) if rows else None,
        learning_curves=draw_learning_curves(runs, line_styles, id_prefix, has_clicks=has_clicks)
        if rows
        else (),
        classes=class_table.page_table() if class_table else None,
        reliability={
            row.method: draw_method_reliability(runs, row.method, line_styles[row.method], id_prefix)
            for row in rows
            if any("reliability" in run.stages[-1] for run in counted_runs(runs, row.method))
        },
        losses={
            name: draw_loss_curves(runs, name, id_prefix)
            for name in names
            if any(run.epochs for run in runs if run.method == name)
        },
        loss_term_styles=loss_term_styles(runs),
        panels=draw_multi_run_panels(runs, id_prefix),
        line_styles=line_styles,
    )


def run_table(runs: Sequence[Run]) -> Table:
    """Return one row per run, by method and seed."""
    kind, order = runs[0].kind, method_names(runs)
    data_tasks = collect_data_tasks(runs)
    columns: dict[str, Callable[[Run], str]] = {
        "Folder": lambda run: run.name,
        "Method": lambda run: run.method,
    }
    if any(task_caption(run, data_tasks) for run in runs):
        columns["Task"] = lambda run: task_caption(run, data_tasks) or EMPTY_CELL
    columns["Seed"] = lambda run: str(run.seed)
    columns["State"] = lambda run: "finished" if run.finished else "unfinished"
    columns["Stages"] = lambda run: str(len(run.stages))
    measures = (kind.measure("labels"), kind.measure(kind.headline_metric), ECE_MEASURE, SECONDS_MEASURE)
    for each in measures:
        columns[each.title] = partial(_format_last, measure=each)
    return table_of(sorted(runs, key=lambda run: (order.index(run.method), run.seed)), columns)


def _format_last(run: Run, measure: Measure) -> str:
    return format_measure(run.stages[-1] if run.stages else {}, measure)


def settings_table(runs: Sequence[Run]) -> Table:
    """Return the settings that differ between methods."""
    rows = [(setting.key, *setting.values) for setting in provenance.differing_settings(runs)]
    return make_table(["Setting", *method_names(runs)], rows)
