"""Template context about all runs of one kind: table of methods, curves, settings and versions."""

import os
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ducats.report import curves, provenance
from ducats.report.annotators import AnnotationStats, annotation_stats
from ducats.report.class_iou import build_class_table
from ducats.report.headline import make_headline
from ducats.report.run_kinds import CLASSIFICATION, Measure
from ducats.report.run_reader import Run, finite_number
from ducats.report.run_section.figure_panels import draw_multi_run_panels
from ducats.report.tables import (
    MeanStd,
    MethodRow,
    aggregate_methods,
    counted_runs,
    format_value,
    method_names,
    visible_measures,
)
from ducats.report.tasks import collect_data_tasks, task_caption
from ducats.utils.errors import UserError


def build_overview(runs: Sequence[Run], multi_task: bool = False) -> dict[str, Any]:
    """Return the template context about all runs together; for a single run, most of it is in its section.

    Args:
        runs: runs of one kind.
        multi_task: whether the runs cover several tasks; averages over all runs are then left out.
    """
    rows = aggregate_methods(runs)
    kind = runs[0].kind
    names = method_names(runs)
    is_single_run = len(runs) == 1
    annotation, warnings = _read_annotation(runs)
    context = {
        "id_prefix": kind.id_prefix,
        "is_single_run": is_single_run,
        "all_runs": runs,
        "run_sections": [],
        "kind": kind,
        "per_pixel": kind != CLASSIFICATION,
        "headline": make_headline(rows, kind),
        "cautions": [
            *([] if multi_task or is_single_run else provenance.collect_cautions(runs)),
            *warnings,
        ],  # the section of a single run has its own warnings
        "line_styles": curves.assign_line_styles(names),
        "annotation": annotation,
        "class_table": None if is_single_run or multi_task else build_class_table(runs),
    }
    if multi_task:
        return (
            context
            | _tables_context(runs, rows)
            | {"table": [], "reliability": {}, "losses": {}, "multi_run_panels": ()}
        )
    return context if is_single_run else context | _tables_context(runs, rows) | _figures_context(runs, rows)


def _read_annotation(runs: Sequence[Run]) -> tuple[list[AnnotationStats], list[str]]:
    """Return the annotation statistics of each run, and warnings about runs whose answers are unreadable."""
    stats, warnings = [], []
    for run in runs:
        try:
            stats += annotation_stats([run])
        except UserError as error:
            reason = str(error).replace(f"{run.folder}{os.sep}", "")
            warnings.append(f"The answers of annotators in {run.name} are not shown: {reason}.")
    return stats, warnings


def _tables_context(runs: Sequence[Run], rows: Sequence[MethodRow]) -> dict[str, Any]:
    measures, kind = visible_measures(rows), runs[0].kind
    return {
        "score": kind.measure(kind.headline_metric),
        "evaluation_note": provenance.describe_evaluation(runs),
        "measures": measures,
        "table": [(row, _row_cells(row, rows, measures)) for row in rows],
        "evaluated_methods": [row.method for row in rows],
        "methods": method_names(runs),
        "runs": _run_rows(runs),
        "settings": provenance.differing_settings(runs),
        "environments": provenance.group_environments(runs),
    }


def _figures_context(runs: Sequence[Run], rows: Sequence[MethodRow]) -> dict[str, Any]:
    kind = runs[0].kind
    methods_with_reliability = [
        row.method
        for row in rows
        if any("reliability" in r.stages[-1] for r in counted_runs(runs, row.method))
    ]
    methods_with_losses = [
        name for name in method_names(runs) if any(run.epochs for run in runs if run.method == name)
    ]
    has_clicks = any(measure.key == "clicks" for measure in visible_measures(rows))

    def learning_curve(metric_key: str, title: str, x_key: str = "labels") -> Markup:
        return Markup(curves.draw_learning_curve(runs, metric_key, title, x_key))

    return {
        "score_curve": learning_curve(kind.headline_metric, kind.score_name),
        "score_curve_by_clicks": learning_curve(kind.headline_metric, kind.score_name, "clicks")
        if has_clicks
        else "",
        "ece_curve": learning_curve("ece", "calibration error"),
        "reliability": {
            name: Markup(curves.draw_method_reliability(runs, name)) for name in methods_with_reliability
        },
        "losses": {name: Markup(curves.draw_loss_curves(runs, name)) for name in methods_with_losses},
        "loss_term_styles": curves.loss_term_styles(runs),
        "multi_run_panels": draw_multi_run_panels(runs, kind.id_prefix),
    }


def _row_cells(
    row: MethodRow, rows: Sequence[MethodRow], measures: Sequence[Measure]
) -> list[tuple[str, bool]]:
    return [(format_value(row.values[m.key], m), _is_best(row, rows, m)) for m in measures]


def _is_best(row: MethodRow, rows: Sequence[MethodRow], measure: Measure) -> bool:
    values = [value.mean for other in rows if (value := other.values[measure.key]) is not None]
    own_value = row.values[measure.key]
    if own_value is None or len(values) < 2 or not measure.direction:
        return False
    return measure.direction * own_value.mean == max(measure.direction * value for value in values)


def _run_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    order = {method: position for position, method in enumerate(method_names(runs))}
    data_tasks = collect_data_tasks(runs)
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        last = run.stages[-1] if run.stages else {}
        score, ece, seconds = (
            finite_number(last, key) for key in (run.kind.headline_metric, "ece", "seconds")
        )
        labels = finite_number(last, "labels")
        rows.append(
            {
                "folder": run.name,
                "task": task_caption(run, data_tasks),
                "method": run.method,
                "seed": str(run.seed),
                "state": "finished" if run.finished else "unfinished",
                "stages": str(len(run.stages)),
                "labels": format_value(
                    None if labels is None else MeanStd(labels, None), run.kind.measure("labels")
                ),
                "score": "–" if score is None else f"{100 * score:.2f}",
                "ece": "–" if ece is None else f"{100 * ece:.2f}",
                "seconds": "–" if seconds is None else f"{seconds:.1f}",
            }
        )
    return rows
