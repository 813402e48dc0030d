"""Numbers of a report: per run, per method over its seeds, and along the labels bought."""

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
    """One method over its seeds.

    Args:
        method: its name.
        seeds: the seeds that the means are over.
        values: by a measure's key; none where not one seed has the measure.
        finished: whether the means are over finished runs; else over runs that are still under way.
        left_out: how many runs are not in the means, because they are still under way.
        measured_on: which images the numbers are about, as the records name them; empty if they do not.
        kind: whether it is about images or about pixels.
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
        """What the row is ranked by, on the test set; a row always has it."""
        return self._known(self.kind.headline)

    @property
    def accuracy(self) -> Spread:
        """Accuracy on the test set: of images, or of their pixels."""
        return self._known("accuracy")

    def _known(self, key: str) -> Spread:
        value = self.values[key]
        if value is None:
            raise ValueError(f"the row of {self.method} was made from runs without {key}")
        return value


@dataclass(frozen=True)
class Point:
    """One stage of a method's curve: the mean labels spent, and the measure over seeds."""

    labels: float
    value: Spread


def by_kind(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs apart by kind, in order of first appearance: what is ranked by one measure."""
    kinds = dict.fromkeys(run.kind for run in runs)
    return [[run for run in runs if run.kind == kind] for kind in kinds]


def methods(runs: Sequence[Run]) -> list[str]:
    """The methods' names, in order of first appearance."""
    return list(dict.fromkeys(run.method for run in runs))


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per run that was measured on a test set, from its last stage; by method, then seed.

    Runs about pixels have more columns: what they are ranked by, every IoU, and clicks.
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
    """The runs that stand for a method: the finished ones; those under way only if none is finished.

    A run that is half done has spent fewer labels, so a mean with it would belong to no budget.
    """
    measured = sorted((r for r in runs if r.method == method and r.result), key=lambda run: run.seed)
    return [run for run in measured if run.finished] or measured


def by_method(runs: Sequence[Run]) -> list[MethodRow]:
    """Mean and sample standard deviation over seeds, for each method with a test result; kinds stay apart."""
    return [row for alike in by_kind(runs) for method in methods(alike) for row in _row(alike, method)]


def _row(runs: Sequence[Run], method: str) -> list[MethodRow]:
    group = counted(runs, method)
    if not group:
        return []
    kind = group[0].kind
    values = {m.key: _spread([number(run.stages[-1], m.key) for run in group]) for m in kind.measures}
    total = sum(1 for run in runs if run.method == method and run.result)
    seeds = tuple(run.seed for run in group)
    on = " or ".join(sorted({str(run.stages[-1].get("measured_on", "")) for run in group}))
    return [MethodRow(method, seeds, values, group[0].finished, total - len(group), on, kind)]


def shown(rows: Sequence[MethodRow], *, spare: bool = False) -> list[Measure]:
    """The columns of a table over these rows: those of their kinds, less the optional that say nothing.

    Args:
        rows: of the table.
        spare: whether there is room for the spare columns too.
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
    """A measure along the labels (or clicks) spent, over seeds; only stages that every counted run reached.

    With fewer seeds at its end than at its start, a curve would bend where seeds leave, whatever labels do.
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
    """A mean and its deviation as people write it: ``98.02 ± 0.31``, or the mean alone for one seed."""
    if value is None:
        return "–"
    mean, comma = value.mean * measure.scale, "," if measure.grouped else ""
    if value.deviation is None or (value.deviation == 0 and measure.digits == 0):
        return f"{mean:{comma}.{measure.digits}f}"  # "65 ± 0" labels says no more than "65"
    digits = measure.digits if measure.grouped else measure.digits or 1
    return f"{mean:{comma}.{digits}f} ± {value.deviation * measure.scale:{comma}.{digits}f}"


def markdown(rows: Sequence[MethodRow]) -> str:
    """The table of methods as Markdown."""
    measures = shown(rows)
    titles = ["Method", *(measure.title for measure in measures), "Seeds"]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for row in rows:
        name = in_a_cell(row.method) + ("" if row.finished else " (under way)")
        lines.append([name, *(paper(row.values.get(m.key), m) for m in measures), str(len(row.seeds))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def csv(rows: Sequence[MethodRow]) -> str:
    """The table of methods as CSV with full numbers; a deviation that does not exist is an empty cell."""
    text = io.StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    keys = list(dict.fromkeys(measure.key for measure in shown(rows, spare=True)))
    columns = [f"{key}_{part}" for key in keys for part in ("mean", "deviation")]
    # Only a table with pixels in it has to say what each row is ranked by.
    ranked = any(row.kind != IMAGES for row in rows)
    writer.writerow(
        ["method", *(["headline"] if ranked else []), "seeds", "finished", "measured_on", *columns]
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
    """Text that cannot break out of its cell of a Markdown table."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
