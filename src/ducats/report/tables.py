"""Numbers of a report: per run, per method over its seeds, and along the labels bought."""

import csv as comma_separated
import html
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ducats.report.read import Run, number


@dataclass(frozen=True)
class Measure:
    """A column of the table.

    Args:
        key: its name in a run's records.
        title: its name on paper.
        better: +1 if more is better, -1 if less is, 0 if neither.
        scale: what it is multiplied by on paper: 100 for percent.
        digits: decimals on paper.
    """

    key: str
    title: str
    better: int
    scale: float = 1.0
    digits: int = 3


MEASURES = (
    Measure("accuracy", "Accuracy %", +1, 100, 2),
    Measure("labels", "Labels", 0, digits=0),
    Measure("ece", "Calibration error %", -1, 100, 2),
    Measure("mean_class_accuracy", "Class mean %", +1, 100, 2),
    Measure("nll", "NLL", -1),
    Measure("brier", "Brier", -1),
    Measure("aurc", "AURC", -1, digits=4),
    Measure("seconds", "Seconds", 0, digits=1),
)


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its sample standard deviation; one seed has no deviation."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Mean and sample standard deviation (dividing by ``n - 1``) of at least one value."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


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
    """

    method: str
    seeds: tuple[int, ...]
    values: Mapping[str, Spread | None]
    finished: bool
    left_out: int
    measured_on: str = ""

    @property
    def accuracy(self) -> Spread:
        """Accuracy on the test set; a row always has it."""
        value = self.values["accuracy"]
        if value is None:
            raise ValueError(f"the row of {self.method} was made from runs without an accuracy")
        return value


@dataclass(frozen=True)
class Point:
    """One stage of a method's curve: the mean labels spent, and the measure over seeds."""

    labels: float
    value: Spread


@dataclass(frozen=True)
class Bin:
    """Predictions of like confidence: how sure they were, how often right, and how many."""

    confidence: float
    accuracy: float
    count: int


def methods(runs: Sequence[Run]) -> list[str]:
    """The methods' names, in order of first appearance."""
    return list(dict.fromkeys(run.method for run in runs))


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row per run that was measured on a test set, from its last stage; by method, then seed."""
    order = {method: place for place, method in enumerate(methods(runs))}
    rows = []
    for run in sorted(runs, key=lambda run: (order[run.method], run.seed)):
        if run.result is None:
            continue
        accuracy, ece = number(run.result, "accuracy"), number(run.result, "ece")
        rows.append(
            {
                "method": run.method,
                "seed": run.seed,
                "accuracy": None if accuracy is None else round(accuracy, 6),
                "ece": None if ece is None else round(ece, 6),
                "labels": run.result["labels"],
                "seconds": run.result["seconds"],
            }
        )
    return rows


def counted(runs: Sequence[Run], method: str) -> list[Run]:
    """The runs that stand for a method: the finished ones; those under way only if none is finished.

    A run that is half done has spent fewer labels, so a mean with it would belong to no budget.
    """
    measured = sorted((r for r in runs if r.method == method and r.result), key=lambda run: run.seed)
    return [run for run in measured if run.finished] or measured


def by_method(runs: Sequence[Run]) -> list[MethodRow]:
    """Mean and sample standard deviation over seeds, for each method with a test result."""
    rows = []
    for method in methods(runs):
        group = counted(runs, method)
        if not group:
            continue
        values = {m.key: _spread([number(run.stages[-1], m.key) for run in group]) for m in MEASURES}
        total = sum(1 for run in runs if run.method == method and run.result)
        seeds = tuple(run.seed for run in group)
        kinds = {str(run.stages[-1].get("measured_on", "")) for run in group}
        on = " or ".join(sorted(kinds))
        rows.append(MethodRow(method, seeds, values, group[0].finished, total - len(group), on))
    return rows


def curve(runs: Sequence[Run], method: str, key: str) -> list[Point]:
    """A measure along the labels bought, over seeds; only stages that every counted run has reached.

    With fewer seeds at its end than at its start, a curve would bend where seeds leave, whatever labels do.
    """
    group = counted(runs, method)
    stages: dict[int, list[tuple[float, float]]] = {}
    for run in group:
        for record in run.stages:
            value = number(record, key)
            if value is not None:
                stages.setdefault(record["stage"], []).append((record["labels"], value))
    points = []
    for _, pairs in sorted(stages.items()):
        if len(pairs) == len(group):
            labels, values = zip(*pairs, strict=True)
            points.append(Point(statistics.fmean(labels), Spread.of(values)))
    return points


def reliability(stages: Sequence[Mapping[str, Any]]) -> list[Bin]:
    """Pool the reliability bins of stages of several seeds, weighing each prediction alike; no empty bins."""
    sums: dict[float, list[float]] = {}
    for table in (stage["reliability"] for stage in stages if "reliability" in stage):
        for upper, count, confidence, accuracy in zip(
            table["upper"], table["count"], table["confidence"], table["accuracy"], strict=True
        ):
            if count and confidence is not None and accuracy is not None:
                total = sums.setdefault(upper, [0.0, 0.0, 0])
                for place, amount in enumerate((confidence * count, accuracy * count, count)):
                    total[place] += amount
    return [Bin(c / n, a / n, int(n)) for _, (c, a, n) in sorted(sums.items())]


def paper(value: Spread | None, measure: Measure) -> str:
    """A mean and its deviation as people write it: ``98.02 ± 0.31``, or the mean alone for one seed."""
    if value is None:
        return "–"
    mean = value.mean * measure.scale
    if value.deviation is None or (value.deviation == 0 and measure.digits == 0):
        return f"{mean:.{measure.digits}f}"  # "65 ± 0" labels says no more than "65"
    digits = measure.digits or 1
    return f"{mean:.{digits}f} ± {value.deviation * measure.scale:.{digits}f}"


def markdown(rows: Sequence[MethodRow]) -> str:
    """The table of methods as Markdown."""
    titles = ["Method", *(measure.title for measure in MEASURES), "Seeds"]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for row in rows:
        name = _markdown_cell(row.method) + ("" if row.finished else " (under way)")
        lines.append([name, *(paper(row.values[m.key], m) for m in MEASURES), str(len(row.seeds))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def csv(rows: Sequence[MethodRow]) -> str:
    """The table of methods as CSV with full numbers; a deviation that does not exist is an empty cell."""
    text = io.StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    columns = [f"{measure.key}_{part}" for measure in MEASURES for part in ("mean", "deviation")]
    writer.writerow(["method", "seeds", "finished", "measured_on", *columns])
    for row in rows:
        cells: list[float | None] = []
        for measure in MEASURES:
            value = row.values[measure.key]
            cells += [None, None] if value is None else [value.mean, value.deviation]
        writer.writerow([row.method, len(row.seeds), str(row.finished).lower(), row.measured_on, *cells])
    return text.getvalue()


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def _markdown_cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
