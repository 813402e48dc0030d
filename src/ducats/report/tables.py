"""Results of a report: per run, per method over its seeds, and as curves over labels."""

import csv as comma_separated
import html
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.figures.numbers import Bin as Bin
from ducats.figures.numbers import Spread as Spread
from ducats.figures.numbers import number
from ducats.figures.numbers import reliability as reliability
from ducats.report.kinds import IMAGES, KINDS, Kind, Measure
from ducats.report.read import Run


@dataclass(frozen=True)
class MethodRow:
    """Results of one method over its seeds.

    Args:
        seeds: the seeds in the means.
        values: by key of the measure; None if no seed has a value.
        finished: whether the means are over finished runs; else over unfinished ones.
        left_out: number of unfinished runs that are not in the means.
        measured_on: the evaluated images, as named in the records; empty if not recorded.
        kind: classification or segmentation.
    """

    method: str
    seeds: tuple[int, ...]
    values: Mapping[str, Spread | None]
    finished: bool
    left_out: int
    measured_on: str = ""
    kind: Kind = IMAGES

    @property
    def score(self) -> Spread:
        """Value of the measure that ranks the rows; always present."""
        return self._known(self.kind.headline)

    @property
    def accuracy(self) -> Spread:
        """Accuracy on the test set, per image or per pixel."""
        return self._known("accuracy")

    def _known(self, key: str) -> Spread:
        value = self.values[key]
        if value is None:
            raise ValueError(f"the runs of {self.method} have no {key}")
        return value


@dataclass(frozen=True)
class Point:
    """One stage of a method's curve: mean number of labels, and the measure over seeds."""

    labels: float
    value: Spread


def by_kind(runs: Sequence[Run]) -> list[list[Run]]:
    """Group the runs by kind, in order of first appearance."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return [[run for run in runs if run.kind == kind] for kind in kinds]


def methods(runs: Sequence[Run]) -> list[str]:
    """Return the names of the methods, in order of first appearance."""
    return list(dict.fromkeys(run.method for run in runs))


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row per run with a test result, from its last stage, sorted by method and seed.

    Rows of segmentation runs also have the headline metric, all IoUs, and clicks.
    """
    order = {method: place for place, method in enumerate(methods(runs))}
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        if run.result is None:
            continue
        row: dict[str, Any] = {"method": run.method, "seed": run.seed}
        row |= {key: _rounded(number(run.result, key)) for key in ("accuracy", "ece")}
        row |= {"labels": run.result["labels"], "seconds": run.result["seconds"]}
        rows.append(row | (_of_pixels(run) if run.kind != IMAGES else {}))
    return rows


def _of_pixels(run: Run) -> dict[str, Any]:
    result = run.stages[-1]
    ious = result.get("class_iou", [])
    return {
        "headline": run.kind.headline,
        "mean_iou": _rounded(number(result, "mean_iou")),
        "mean_iou_star": _rounded(number(result, "mean_iou_star")),
        "clicks": result.get("clicks", result["labels"]),
        "classes": list(run.classes),
        "class_iou": [_rounded(number({"iou": iou}, "iou")) for iou in ious],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def counted(runs: Sequence[Run], method: str) -> list[Run]:
    """Return the runs that count for a method: the finished ones, or all if none is finished.

    Unfinished runs have spent fewer labels; a mean that includes them would not belong to any budget.
    """
    measured = sorted((r for r in runs if r.method == method and r.result), key=lambda run: run.seed)
    return [run for run in measured if run.finished] or measured


def by_method(runs: Sequence[Run]) -> list[MethodRow]:
    """Return mean and sample standard deviation over seeds for each kind and method with a test result."""
    return [row for alike in by_kind(runs) for method in methods(alike) for row in _row(alike, method)]


def _row(runs: Sequence[Run], method: str) -> list[MethodRow]:
    group = counted(runs, method)
    if not group:
        return []
    kind = group[0].kind
    values = {m.key: _spread([number(run.stages[-1], m.key) for run in group]) for m in kind.measures}
    total = sum(1 for run in runs if run.method == method and run.result)
    seeds = tuple(run.seed for run in group)
    on = " or ".join(sorted({str(run.stages[-1].get("evaluated_on", "")) for run in group}))
    return [MethodRow(method, seeds, values, group[0].finished, total - len(group), on, kind)]


def shown(rows: Sequence[MethodRow], *, spare: bool = False) -> list[Measure]:
    """Return the columns of a table of these rows, without optional columns that add nothing.

    Args:
        spare: include the spare columns.
    """
    used = [kind for kind in KINDS.values() if any(row.kind == kind for row in rows)]
    found = dict.fromkeys(measure for kind in used or [IMAGES] for measure in kind.measures)
    wanted = [measure for measure in found if spare or not measure.spare]
    return [measure for measure in wanted if not measure.optional or _says_something(measure, rows)]


def _says_something(measure: Measure, rows: Sequence[MethodRow]) -> bool:
    values = [row.values.get(measure.key) for row in rows]
    others = [row.values.get(measure.unlike) for row in rows]
    return any(value is not None and value != other for value, other in zip(values, others, strict=True))


def curve(runs: Sequence[Run], method: str, key: str, over: str = "labels") -> list[Point]:
    """Return a measure over labels (or clicks), averaged over seeds.

    Only stages that every counted run reached are included. Otherwise the curve would change where seeds
    drop out.
    """
    group = counted(runs, method)
    stages: dict[int, list[tuple[float, float]]] = {}
    for run in group:
        for record in run.stages:
            value, spent = number(record, key), number(record, over)
            if value is not None and spent is not None:
                stages.setdefault(record["stage"], []).append((spent, value))
    points = []
    for _, pairs in sorted(stages.items()):
        if len(pairs) == len(group):
            labels, values = zip(*pairs, strict=True)
            points.append(Point(statistics.fmean(labels), Spread.of(values)))
    return points


def paper(value: Spread | None, measure: Measure) -> str:
    """Format mean and deviation as ``98.02 ± 0.31``, or the mean alone for one seed."""
    if value is None:
        return "–"
    mean, comma = value.mean * measure.scale, "," if measure.grouped else ""
    if value.deviation is None or (value.deviation == 0 and measure.digits == 0):
        return f"{mean:{comma}.{measure.digits}f}"  # "65" labels, not "65 ± 0"
    digits = measure.digits if measure.grouped else measure.digits or 1
    return f"{mean:{comma}.{digits}f} ± {value.deviation * measure.scale:{comma}.{digits}f}"


def markdown(rows: Sequence[MethodRow]) -> str:
    """Format the table of methods as Markdown."""
    measures = shown(rows)
    titles = ["Method", *(measure.title for measure in measures), "Seeds"]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for row in rows:
        name = in_a_cell(row.method) + ("" if row.finished else " (unfinished)")
        lines.append([name, *(paper(row.values.get(m.key), m) for m in measures), str(len(row.seeds))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def csv(rows: Sequence[MethodRow]) -> str:
    """Format the table of methods as CSV with unrounded numbers; a missing deviation is an empty cell."""
    text = io.StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    keys = list(dict.fromkeys(measure.key for measure in shown(rows, spare=True)))
    columns = [f"{key}_{part}" for key in keys for part in ("mean", "deviation")]
    # The headline column is needed only if there are segmentation runs.
    ranked = any(row.kind != IMAGES for row in rows)
    writer.writerow(
        ["method", *(["headline"] if ranked else []), "seeds", "finished", "evaluated_on", *columns]
    )
    for row in rows:
        cells: list[float | None] = []
        for key in keys:
            value = row.values.get(key)
            cells += [None, None] if value is None else [value.mean, value.deviation]
        who = [row.method, *([row.kind.headline] if ranked else [])]
        writer.writerow([*who, len(row.seeds), str(row.finished).lower(), row.measured_on, *cells])
    return text.getvalue()


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def in_a_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
