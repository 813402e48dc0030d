"""Tables of a run section: metrics, calibration and cost by stage, results by class and by round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ducats.report.figures.summary_stats import MeanStd, finite_number
from ducats.report.run_kinds import (
    AURC_MEASURE,
    BRIER_MEASURE,
    CLASSIFICATION,
    ECE_MEASURE,
    NLL_MEASURE,
    SECONDS_MEASURE,
    Measure,
    RunKind,
)
from ducats.report.run_reader import Run
from ducats.report.run_section.class_results import ClassResult, ClassResults
from ducats.report.run_section.selections import QueryRound
from ducats.report.tables import format_value
from ducats.runfolder.records import Record

EMPTY_CELL = "–"
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class TextTable:
    """Column titles and formatted cells."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


_StageColumn = tuple[str, Callable[[Record], str]]


def metrics_table(run: Run) -> TextTable:
    """Return the metrics of each stage."""
    shown_measures = [
        m
        for m in run.kind.measures
        if m != SECONDS_MEASURE and (not m.optional or _has_values(run.stages, m))
    ]
    columns: list[_StageColumn] = [("Stage", _raw_cell("stage")), ("Epoch", _raw_cell("epoch"))]
    columns += [(measure.title, _measure_cell(measure)) for measure in shown_measures]
    return _stage_table(run.stages, columns)


def calibration_table(run: Run) -> TextTable:
    """Return the calibration metrics of each stage, with and without temperature scaling."""
    labels = run.kind.measure("labels")
    stages = [stage for stage in run.stages if finite_number(stage, "ece") is not None]
    columns: list[_StageColumn] = [(labels.title, _measure_cell(labels))]
    columns += [
        (measure.title, _measure_cell(measure))
        for measure in (ECE_MEASURE, NLL_MEASURE, BRIER_MEASURE, AURC_MEASURE)
    ]
    if any("temperature_scaled" in stage for stage in stages):
        columns += [
            ("Temperature", _temperature_scaling_cell(lambda scaled: f"{scaled['temperature']:.3f}")),
            ("Fitted on labels", _temperature_scaling_cell(lambda scaled: f"{scaled['labels']:,}")),
        ]
        columns += [
            (f"Scaled: {measure.title}", _temperature_scaling_cell(_measure_cell(measure)))
            for measure in (ECE_MEASURE, NLL_MEASURE, BRIER_MEASURE)
        ]
    return _stage_table(stages, columns)


def cost_table(run: Run) -> TextTable:
    """Return the computing time, annotation time and memory of each stage."""
    seconds_before = {
        id(stage): finite_number(earlier, "seconds") or 0.0
        for earlier, stage in zip([{}, *run.stages], run.stages, strict=False)
    }
    labels = run.kind.measure("labels")
    columns: list[_StageColumn] = [
        ("Stage", _raw_cell("stage")),
        (labels.title, _measure_cell(labels)),
        ("Seconds so far", _measure_cell(SECONDS_MEASURE)),
        ("Seconds in this stage", lambda stage: f"{stage['seconds'] - seconds_before[id(stage)]:.1f}"),
    ]
    if any("peak_memory_bytes" in stage for stage in run.stages):
        columns.append(
            (
                "Peak memory MB",
                _measure_cell(Measure("peak_memory_bytes", "", 0, 1 / MEGABYTE, 0, thousands_separator=True)),
            )
        )
    if any("annotation_seconds" in stage for stage in run.stages):
        columns.append(
            ("Annotation minutes so far", _measure_cell(Measure("annotation_seconds", "", 0, 1 / 60, 1)))
        )
    return _stage_table(run.stages, columns)


def missing_records(run: Run) -> str:
    """Return a sentence about times and memory that were not recorded; empty if all were."""
    names = []
    if run.epochs and not any(finite_number(epoch, "seconds") is not None for epoch in run.epochs):
        names.append("seconds of each epoch")
    if run.stages and not any("peak_memory_bytes" in stage for stage in run.stages):
        names.append("memory")
    return f"This run, made by an older version, did not record: {' and '.join(names)}." if names else ""


def per_class_table(rows: Sequence[ClassResult], class_results: ClassResults) -> TextTable:
    """Return the results of each class before and after, its count and its most frequent confusion."""
    titles = (
        [f"{class_results.metric_name} before %", f"{class_results.metric_name} after %", "Change"]
        if class_results.has_before
        else []
    )
    titles = ["Class", *(titles or [f"{class_results.metric_name} %"])]
    if not class_results.missing_note:
        titles += ["Evaluated", "Most often confused with"]
    return TextTable(tuple(titles), tuple(tuple(_class_cells(row, class_results)) for row in rows))


def _class_cells(row: ClassResult, class_results: ClassResults) -> list[str]:
    cells = [row.name]
    if class_results.has_before:
        cells.append(_percent(row.before))
    cells.append(_percent(row.after))
    if class_results.has_before:
        cells.append(EMPTY_CELL if row.change is None else f"{100 * row.change:+.1f}".replace("-", "−"))
    if not class_results.missing_note:
        cells.append(EMPTY_CELL if row.count is None else f"{row.count:,}")
        cells.append(f"{row.confused_with} ({row.confusion_count:,})" if row.confused_with else EMPTY_CELL)
    return cells


def _percent(share: float | None) -> str:
    return EMPTY_CELL if share is None else f"{100 * share:.1f}"


def rounds_table(query_rounds: Sequence[QueryRound], kind: RunKind) -> TextTable:
    """Return the labels, correct predictions and redundancy of each round."""
    has_void = any(query_round.n_void for query_round in query_rounds)
    # Some labelled samples are in no snapshot.
    is_partial = any(
        query_round.n_labels
        and query_round.n_labelled_in_snapshot + query_round.n_void != query_round.n_labels
        for query_round in query_rounds
    )
    titles = ["Round", "After epoch", kind.measure("labels").title]
    titles += [*(["In snapshot"] if is_partial else []), "Predicted correctly", "Correct %"]
    titles += ["No class applies"] if has_void else []
    titles += ["Near-duplicates", "Expected at random"] if kind == CLASSIFICATION else ["Near another %"]
    rows = []
    for query_round in query_rounds:
        cells = [
            f"{query_round.number}",
            f"{query_round.epoch}",
            f"{query_round.n_labels:,}" if query_round.n_labels else "pending",
        ]
        cells += [f"{query_round.n_labelled_in_snapshot + query_round.n_void:,}"] if is_partial else []
        cells.append(f"{query_round.n_correct:,}")
        cells.append(
            f"{100 * query_round.n_correct / query_round.n_labelled_in_snapshot:.0f}"
            if query_round.n_labelled_in_snapshot
            else EMPTY_CELL
        )
        cells += [f"{query_round.n_void:,}"] if has_void else []
        if kind != CLASSIFICATION:
            cells.append(
                EMPTY_CELL
                if query_round.neighbour_share is None
                else f"{100 * query_round.neighbour_share:.0f}"
            )
        elif query_round.near_duplicates is None:
            cells += [EMPTY_CELL, EMPTY_CELL]
        else:
            cells += [
                f"{len(query_round.near_duplicates.pairs):,}",
                f"{query_round.near_duplicates.n_expected_pairs:.1f}",
            ]
        rows.append(tuple(cells))
    return TextTable(tuple(titles), tuple(rows))


def _stage_table(stages: Sequence[Record], columns: Sequence[_StageColumn]) -> TextTable:
    rows = tuple(tuple(cell(stage) for _, cell in columns) for stage in stages)
    return TextTable(tuple(title for title, _ in columns), rows)


def _has_values(stages: Sequence[Record], measure: Measure) -> bool:
    values = [finite_number(stage, measure.key) for stage in stages]
    others = [finite_number(stage, measure.redundant_with) for stage in stages]
    return any(value is not None and value != other for value, other in zip(values, others, strict=True))


def _raw_cell(key: str) -> Callable[[Record], str]:
    return lambda stage: str(stage[key])


def _measure_cell(measure: Measure) -> Callable[[Record], str]:
    def cell(stage: Record) -> str:
        value = finite_number(stage, measure.key)
        return format_value(None if value is None else MeanStd(value, None), measure)

    return cell


def _temperature_scaling_cell(cell: Callable[[Record], str]) -> Callable[[Record], str]:
    return lambda stage: cell(stage["temperature_scaled"]) if "temperature_scaled" in stage else EMPTY_CELL
