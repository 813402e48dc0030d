"""The part of a page about all runs of one kind: table of methods, curves, settings and versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import (
    aggregate_methods,
    counted_runs,
    format_value,
    method_names,
    method_table,
    visible_measures,
)
from ducats.report.page_budget import text_bytes
from ducats.report.run_reader import Run
from ducats.report.table import EMPTY_CELL, Table, make_table
from ducats.report.tasks import collect_data_tasks, task_caption
from ducats.runfolder.records import finite_number


@dataclass(frozen=True)
class Overview:
    """Results of several runs of one kind together. Figures are SVG text by method.

    Args:
        results: table of methods; None if the runs cover several tasks, as averages would mix them.
        classes: IoU by class and method; None if not recorded.
    """

    evaluation_note: str
    results: Table | None
    learning_curves: tuple[CaptionedFigure, ...]
    classes: Table | None
    reliability: Mapping[str, str]
    losses: Mapping[str, str]
    loss_term_styles: Mapping[str, LineStyle]
    panels: tuple[FigurePanel, ...]

    @property
    def n_figure_bytes(self) -> int:
        """Size of all figures."""
        svgs = [*self.reliability.values(), *self.losses.values()]
        svgs += [curve.svg for curve in self.learning_curves]
        return text_bytes([*svgs, *(panel.svg for panel in self.panels)])


EMPTY_OVERVIEW = Overview("", None, (), None, {}, {}, {}, ())


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
    )


def run_table(runs: Sequence[Run]) -> Table:
    """Return one row per run, by method and seed."""
    kind, order = runs[0].kind, method_names(runs)
    data_tasks = collect_data_tasks(runs)
    has_tasks = any(task_caption(run, data_tasks) for run in runs)
    titles = ["Folder", "Method", *(["Task"] if has_tasks else []), "Seed", "State", "Stages"]
    titles += [kind.measure("labels").title, kind.measure(kind.headline_metric).title]
    titles += ["Calibration error %", "Seconds"]
    rows = []
    for run in sorted(runs, key=lambda run: (order.index(run.method), run.seed)):
        last = run.stages[-1] if run.stages else {}
        labels, score, ece, seconds = (
            finite_number(last, key) for key in ("labels", kind.headline_metric, "ece", "seconds")
        )
        cells = [run.name, run.method]
        cells += [task_caption(run, data_tasks) or EMPTY_CELL] if has_tasks else []
        cells += [str(run.seed), "finished" if run.finished else "unfinished", str(len(run.stages))]
        cells.append(format_value(None if labels is None else MeanStd(labels, None), kind.measure("labels")))
        cells += [EMPTY_CELL if share is None else f"{100 * share:.2f}" for share in (score, ece)]
        rows.append([*cells, EMPTY_CELL if seconds is None else f"{seconds:.1f}"])
    return make_table(titles, rows)


def settings_table(runs: Sequence[Run]) -> Table:
    """Return the settings that differ between methods."""
    rows = [(setting.key, *setting.values) for setting in provenance.differing_settings(runs)]
    return make_table(["Setting", *method_names(runs)], rows)
