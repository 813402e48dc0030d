"""Results of a report: per run, per method over its seeds, and as curves over labels."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.report.figures.summary_stats import MeanStd
from ducats.report.run_kinds import CLASSIFICATION, RUN_KINDS, Measure, RunKind
from ducats.report.run_reader import Run, finished_or_all
from ducats.report.table import EMPTY_CELL, Cell, Table, make_table, to_csv
from ducats.runfolder.records import Record, finite_number


@dataclass(frozen=True)
class MethodRow:
    """Results of one method over its seeds."""

    method: str
    seeds: tuple[int, ...]  # the seeds in the means
    values: Mapping[str, MeanStd | None]  # by key of the measure; None if no seed has a value
    finished: bool  # whether the means are over finished runs; else over unfinished ones
    n_left_out: int  # number of unfinished runs that are not in the means
    evaluated_on: str = ""  # the evaluated images, as named in the records; empty if not recorded
    kind: RunKind = CLASSIFICATION

    @property
    def score(self) -> MeanStd:
        """Value of the measure that ranks the rows; always present."""
        return self._required_value(self.kind.headline_metric)

    @property
    def accuracy(self) -> MeanStd:
        """Accuracy on the test set, per image or per pixel."""
        return self._required_value("accuracy")

    def _required_value(self, key: str) -> MeanStd:
        value = self.values[key]
        if value is None:
            raise ValueError(f"the runs of {self.method} have no {key}")
        return value


@dataclass(frozen=True)
class CurvePoint:
    """One stage of a method's curve: mean number of labels, and the measure over seeds."""

    n_spent: float
    value: MeanStd


def group_by_kind(runs: Sequence[Run]) -> list[list[Run]]:
    """Group the runs by kind, in order of first appearance."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return [[run for run in runs if run.kind == kind] for kind in kinds]


def method_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the methods, in order of first appearance."""
    return list(dict.fromkeys(run.method for run in runs))


def summarise_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per run with a test result, from its last stage, sorted by method and seed.

    Rows of segmentation runs also have the headline metric, all IoUs, and clicks.
    """
    order = {method: position for position, method in enumerate(method_names(runs))}
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        if run.result is None:
            continue
        row: dict[str, Any] = {"method": run.method, "seed": run.seed}
        row |= {key: _rounded(finite_number(run.result, key)) for key in ("accuracy", "ece")}
        row |= {"labels": run.result["labels"], "seconds": run.result["seconds"]}
        rows.append(row | (_segmentation_columns(run) if run.kind != CLASSIFICATION else {}))
    return rows


def _segmentation_columns(run: Run) -> dict[str, Any]:
    result = run.stages[-1]
    ious = result.get("class_iou", [])
    return {
        "headline_metric": run.kind.headline_metric,
        "mean_iou": _rounded(finite_number(result, "mean_iou")),
        "mean_iou_star": _rounded(finite_number(result, "mean_iou_star")),
        "clicks": result.get("clicks", result["labels"]),
        "classes": list(run.classes),
        "class_iou": [_rounded(finite_number({"iou": iou}, "iou")) for iou in ious],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def counted_runs(runs: Sequence[Run], method: str) -> list[Run]:
    """Return the runs that count for a method: the finished ones, or all if none is finished.

    Unfinished runs have spent fewer labels; a mean that includes them would not belong to any budget.
    """
    return finished_or_all(
        sorted((run for run in runs if run.method == method and run.result), key=lambda run: run.seed)
    )


def aggregate_methods(runs: Sequence[Run]) -> list[MethodRow]:
    """Return mean and sample standard deviation over seeds for each kind and method with a test result."""
    return [
        row
        for kind_runs in group_by_kind(runs)
        for method in method_names(kind_runs)
        for row in _method_rows(kind_runs, method)
    ]


def _method_rows(runs: Sequence[Run], method: str) -> list[MethodRow]:
    group = counted_runs(runs, method)
    if not group:
        return []
    kind = group[0].kind
    values = {
        m.key: MeanStd.from_known(finite_number(run.stages[-1], m.key) for run in group)
        for m in kind.measures
    }
    total = sum(1 for run in runs if run.method == method and run.result)
    seeds = tuple(run.seed for run in group)
    evaluated_on = " or ".join(sorted({str(run.stages[-1].get("evaluated_on", "")) for run in group}))
    return [MethodRow(method, seeds, values, group[0].finished, total - len(group), evaluated_on, kind)]


def visible_measures(rows: Sequence[MethodRow], *, include_csv_only: bool = False) -> list[Measure]:
    """Return the columns of a table of these rows, without optional columns that add nothing."""
    used_kinds = [kind for kind in RUN_KINDS.values() if any(row.kind == kind for row in rows)]
    all_measures = dict.fromkeys(
        measure for kind in used_kinds or [CLASSIFICATION] for measure in kind.measures
    )
    candidates = [measure for measure in all_measures if include_csv_only or not measure.csv_only]
    return [measure for measure in candidates if measure.adds_information(row.values for row in rows)]


def mean_curve(runs: Sequence[Run], method: str, metric_key: str, x_key: str = "labels") -> list[CurvePoint]:
    """Return a measure over labels (or clicks), averaged over seeds.

    Only stages that every counted run reached are included. Otherwise the curve would change where seeds
    drop out.
    """
    group = counted_runs(runs, method)
    stages: dict[int, list[tuple[float, float]]] = {}
    for run in group:
        for record in run.stages:
            value, x_value = finite_number(record, metric_key), finite_number(record, x_key)
            if value is not None and x_value is not None:
                stages.setdefault(record["stage"], []).append((x_value, value))
    points = []
    for _, pairs in sorted(stages.items()):
        if len(pairs) == len(group):
            labels, values = zip(*pairs, strict=True)
            points.append(CurvePoint(statistics.fmean(labels), MeanStd.from_values(values)))
    return points


def format_value(value: MeanStd | None, measure: Measure) -> str:
    """Format mean and deviation as ``98.02 ± 0.31``, or the mean alone for one seed."""
    if value is None:
        return EMPTY_CELL
    mean, separator = value.mean * measure.scale, "," if measure.thousands_separator else ""
    if value.std is None or (value.std == 0 and measure.digits == 0):
        return f"{mean:{separator}.{measure.digits}f}"  # "65" labels, not "65 ± 0"
    digits = measure.digits if measure.thousands_separator else measure.digits or 1
    return f"{mean:{separator}.{digits}f} ± {value.std * measure.scale:{separator}.{digits}f}"


def format_measure(record: Record, measure: Measure) -> str:
    """Format one recorded value."""
    value = finite_number(record, measure.key)
    return format_value(None if value is None else MeanStd(value, None), measure)


def method_table(rows: Sequence[MethodRow], *, for_page: bool = False) -> Table:
    """Return the table of methods; on a page, with the best values and arrows to the better side."""
    measures = visible_measures(rows)
    arrows = {1: "\u00a0↑", -1: "\u00a0↓", 0: ""} if for_page else {}
    titles = ["Method", *(m.title + arrows.get(m.direction, "") for m in measures), "Seeds"]
    cells = [
        (
            row.method + ("" if row.finished else " (unfinished)"),
            *(format_value(row.values.get(m.key), m) for m in measures),
            str(len(row.seeds)),
        )
        for row in rows
    ]
    best = {
        (row_index, column)
        for row_index, row in enumerate(rows)
        for column, measure in enumerate(measures, start=1)
        if for_page and _is_best(row, rows, measure)
    }
    return Table(tuple(titles), tuple(cells), frozenset(best), methods=tuple(row.method for row in rows))


def method_table_csv(rows: Sequence[MethodRow]) -> str:
    """Format the table of methods as CSV with unrounded numbers; a missing deviation is an empty cell."""
    keys = list(dict.fromkeys(measure.key for measure in visible_measures(rows, include_csv_only=True)))
    # The headline metric is needed only if there are segmentation runs.
    has_segmentation = any(row.kind != CLASSIFICATION for row in rows)
    titles = ["method", *(["headline_metric"] if has_segmentation else []), "seeds", "finished"]
    titles += ["evaluated_on", *(f"{key}_{part}" for key in keys for part in ("mean", "deviation"))]
    lines: list[list[Cell]] = []
    for row in rows:
        values = [row.values.get(key) for key in keys]
        lines.append(
            [
                row.method,
                *([row.kind.headline_metric] if has_segmentation else []),
                len(row.seeds),
                str(row.finished).lower(),
                row.evaluated_on,
                *(cell for value in values for cell in ((value.mean, value.std) if value else (None, None))),
            ]
        )
    return to_csv(make_table(titles, lines))


def _is_best(row: MethodRow, rows: Sequence[MethodRow], measure: Measure) -> bool:
    values = [value.mean for other in rows if (value := other.values[measure.key]) is not None]
    own_value = row.values[measure.key]
    if own_value is None or len(values) < 2 or not measure.direction:
        return False
    return measure.direction * own_value.mean == max(measure.direction * value for value in values)
