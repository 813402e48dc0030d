"""Tables of a run section: metrics, calibration and cost by stage, results by class and by round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ducats.report.method_results import format_measure
from ducats.report.run_kinds import (
    AURC_MEASURE,
    BRIER_MEASURE,
    CLASSIFICATION,
    ECE_MEASURE,
    NLL_MEASURE,
    SECONDS_MEASURE,
    Measure,
    RunKind,
    capitalise,
)
from ducats.report.run_reader import Run
from ducats.report.run_section.class_results import ClassResult, ClassResults
from ducats.report.run_section.selections import QueryRound
from ducats.report.table import EMPTY_CELL, Table, make_table, table_of
from ducats.runfolder.records import Record, audit_intervals, describe_timed_record, finite_number

_MEMORY_MEASURE = Measure("peak_memory_bytes", "Peak memory MB", 0, 1e-6, 0, thousands_separator=True)
_ANNOTATION_MEASURE = Measure("annotation_seconds", "Annotation minutes so far", 0, 1 / 60, 1)
_StageCell = Callable[[Record], str]


def metrics_table(run: Run) -> Table:
    """Return the metrics of each stage."""
    shown_measures = [m for m in run.kind.measures if m != SECONDS_MEASURE and m.adds_information(run.stages)]
    columns = {"Stage": _raw_cell("stage"), "Epoch": _raw_cell("epoch")}
    return table_of(run.stages, columns | _measure_cells(*shown_measures))


def calibration_table(run: Run) -> Table:
    """Return the calibration metrics of each stage, with and without temperature scaling."""
    stages = [stage for stage in run.stages if finite_number(stage, "ece") is not None]
    measures = (run.kind.measure("labels"), ECE_MEASURE, NLL_MEASURE, BRIER_MEASURE, AURC_MEASURE)
    columns = _measure_cells(*measures)
    if any("temperature_scaled" in stage for stage in stages):
        scaled: dict[str, _StageCell] = {
            "Temperature": lambda fit: f"{fit['temperature']:.3f}",
            "Fitted on labels": lambda fit: f"{fit['labels']:,}",
        }
        metrics = _measure_cells(ECE_MEASURE, NLL_MEASURE, BRIER_MEASURE)
        scaled |= {f"Scaled: {title}": cell for title, cell in metrics.items()}
        columns |= {title: _temperature_scaling_cell(cell) for title, cell in scaled.items()}
    return table_of(stages, columns)


def added_classes_table(run: Run) -> Table:
    """Return the classes that were added during the run, and how much of the pool seems to belong to them."""
    added, classes = run.class_list.added, run.class_list
    if not added:
        return table_of((), {})
    labels, latest = run.files.count_class_labels(), run.added_classes[-1] if run.added_classes else None
    predicted = classes.predicted_images(latest) if latest else {}
    units = "images" if run.kind is CLASSIFICATION else "pixels"

    def describe_predicted(number: int) -> str:
        if latest is None or number not in predicted:
            return EMPTY_CELL
        return f"{predicted[number]:,} of {latest['total']:,} ({predicted[number] / latest['total']:.1%})"

    columns: dict[str, Callable[[tuple[str, int]], str]] = {
        "Class": lambda row: row[0],
        "Added in round": lambda row: str(row[1]),
        "Labels": lambda row: f"{labels[classes.names.index(row[0])]:,}",
        f"Target {units} predicted": lambda row: describe_predicted(classes.names.index(row[0])),
    }
    return table_of(added, columns)


def cost_table(run: Run) -> Table:
    """Return the computing time, annotation time and memory of each stage."""
    seconds_before = {
        id(stage): finite_number(earlier, "seconds") or 0.0
        for earlier, stage in zip([{}, *run.stages], run.stages, strict=False)
    }
    columns = {"Stage": _raw_cell("stage")}
    columns |= _measure_cells(run.kind.measure("labels"), replace(SECONDS_MEASURE, title="Seconds so far"))
    columns["Seconds in this stage"] = lambda stage: f"{stage['seconds'] - seconds_before[id(stage)]:.1f}"
    optional = (_MEMORY_MEASURE, _ANNOTATION_MEASURE)
    recorded = [measure for measure in optional if any(measure.key in stage for stage in run.stages)]
    columns |= _measure_cells(*recorded)
    if any(describe_timed_record(stage) for stage in run.stages):
        columns["Timed answers so far"] = lambda stage: (
            f"{stage['timed_units']:,} of {stage['annotation_units']:,}"
            if "timed_units" in stage
            else EMPTY_CELL
        )
    return table_of(run.stages, columns)


def audit_table(run: Run) -> Table:
    """Return the figures of the audit at each stage."""
    columns: dict[str, _StageCell] = {
        "Stage": _raw_cell("stage"),
        "Epoch": _raw_cell("epoch"),
        "Audit labels": lambda record: f"{record['labels']:,}",
    }
    for measure in audit_intervals(run.audits[-1]) if run.audits else ():
        columns[f"{capitalise(measure)} %"] = partial(_audit_estimate, name=measure)
        columns[f"95 % interval of {measure}"] = partial(_audit_interval, name=measure)
    for name, title in (("overconfidence", "Overconfidence"), ("gain", "Gain since the stage before")):
        if any(name in record for record in run.audits):
            columns[f"{title}, points"] = partial(_signed_interval, name=name)
    return table_of(run.audits, columns)


def audit_class_table(run: Run) -> Table:
    """Return the accuracy or IoU of each class by the latest audit; empty if there is none."""
    if not run.audits:
        return make_table((), ())
    metric = "IoU" if "miou" in run.audits[-1] else "Accuracy"
    rows = [
        (name, _percent(one["estimate"]), _format_limits(one))
        for name, one in run.audits[-1].get("classes", {}).items()
    ]
    return make_table(("Class", f"{metric} %", "95 % interval"), rows)


def _audit_estimate(record: Record, name: str) -> str:
    return _percent(audit_intervals(record)[name]["estimate"])


def _audit_interval(record: Record, name: str) -> str:
    return _format_limits(audit_intervals(record)[name])


def _format_limits(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['low']:.1f} to {100 * interval['high']:.1f}"


def _signed_interval(record: Record, name: str) -> str:
    if name not in record:
        return EMPTY_CELL
    low, high = (f"{100 * record[name][end]:.1f}".replace("-", "−") for end in ("low", "high"))
    return f"{low} to {high}"


def per_class_table(rows: Sequence[ClassResult], class_results: ClassResults) -> Table:
    """Return the results of each class before and after, its count and its most frequent confusion."""
    name, has_before = class_results.metric_name, class_results.has_before
    columns: dict[str, Callable[[ClassResult], str]] = {"Class": lambda row: row.name}
    if has_before:
        columns[f"{name} before %"] = lambda row: _percent(row.before)
    columns[f"{name} after %" if has_before else f"{name} %"] = lambda row: _percent(row.after)
    if has_before:
        columns["Change"] = lambda row: _or_empty(row.change, "{:+.1f}", 100).replace("-", "−")
    if not class_results.missing_note:
        columns["Evaluated"] = lambda row: _or_empty(row.count, "{:,}")
        columns["Most often confused with"] = lambda row: (
            f"{row.confused_with} ({row.confusion_count:,})" if row.confused_with else EMPTY_CELL
        )
    return table_of(rows, columns)


def rounds_table(query_rounds: Sequence[QueryRound], kind: RunKind) -> Table:
    """Return the labels, correct predictions and redundancy of each round."""
    columns: dict[str, Callable[[QueryRound], str]] = {
        "Round": lambda each: f"{each.number}",
        "After epoch": lambda each: f"{each.epoch}",
        kind.measure("labels").title: lambda each: f"{each.n_labels:,}" if each.n_labels else "pending",
    }
    # Some labelled samples are in no snapshot.
    if any(
        each.n_labels and each.n_labelled_in_snapshot + each.n_void != each.n_labels for each in query_rounds
    ):
        columns["In snapshot"] = lambda each: f"{each.n_labelled_in_snapshot + each.n_void:,}"
    columns["Predicted correctly"] = lambda each: f"{each.n_correct:,}"
    columns["Correct %"] = lambda each: (
        f"{100 * each.n_correct / each.n_labelled_in_snapshot:.0f}"
        if each.n_labelled_in_snapshot
        else EMPTY_CELL
    )
    if any(each.n_void for each in query_rounds):
        columns["No class applies"] = lambda each: f"{each.n_void:,}"
    if kind == CLASSIFICATION:
        columns["Near-duplicates"] = lambda each: (
            f"{len(each.near_duplicates.pairs):,}" if each.near_duplicates else EMPTY_CELL
        )
        columns["Expected at random"] = lambda each: (
            f"{each.near_duplicates.n_expected_pairs:.1f}" if each.near_duplicates else EMPTY_CELL
        )
    else:
        columns["Near another %"] = lambda each: _or_empty(each.neighbour_share, "{:.0f}", 100)
    return table_of(query_rounds, columns)


def pseudo_labels_table(run: Run) -> Table:
    """Return the number of pseudo-labels by the number of rounds before them, and how many are correct.

    If they were refreshed several times between two rounds, the last refresh counts.
    """
    last_refreshes = list({record["stage"]: record for record in run.pseudo_labels}.values())
    columns: dict[str, _StageCell] = {
        "Rounds before": _raw_cell("stage"),
        "After epoch": _raw_cell("epoch"),
        "Pseudo-labels": lambda record: f"{record['count']:,}",
    }
    if any("correct" in record for record in last_refreshes):
        columns["Correct"] = lambda record: _or_empty(finite_number(record, "correct"), "{:,.0f}")
        columns["Correct %"] = lambda record: _percent(
            (finite_number(record, "correct") or 0) / record["count"]
            if record["count"] and "correct" in record
            else None
        )
    return table_of(last_refreshes, columns)


def _percent(share: float | None) -> str:
    return _or_empty(share, "{:.1f}", 100)


def _or_empty(value: float | None, text_format: str, scale: int = 1) -> str:
    return EMPTY_CELL if value is None else text_format.format(scale * value)


def _raw_cell(key: str) -> _StageCell:
    return lambda stage: str(stage[key])


def _measure_cells(*measures: Measure) -> dict[str, _StageCell]:
    return {measure.title: partial(format_measure, measure=measure) for measure in measures}


def _temperature_scaling_cell(cell: _StageCell) -> _StageCell:
    return lambda stage: cell(stage["temperature_scaled"]) if "temperature_scaled" in stage else EMPTY_CELL
