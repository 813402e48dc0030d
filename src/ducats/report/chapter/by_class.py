"""Which classes a run's labels helped: before the first, after the last, and what is still taken for what."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.records import Record
from ducats.report.kinds import IMAGES
from ducats.report.read import Run, number

MOST = 15  # gained, and as many lost, before the rest is folded away
FEW = 3  # so few are not worth folding away


@dataclass(frozen=True)
class ClassRow:
    """A class: shares before and after, how many of it were measured at the end, what it is taken for.

    Args:
        name: of the class.
        before: none if it was not measured then, or there is only one stage.
        after: none if it was not measured.
        count: images or pixels of it at the end; none where nobody wrote that down.
        taken_for: the class that the model says most often where it is wrong; empty if it never is.
        times: how often.
    """

    name: str
    before: float | None
    after: float | None
    count: int | None = None
    taken_for: str = ""
    times: int = 0

    @property
    def change(self) -> float | None:
        """After less before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class ByClass:
    """All classes, those that gained most first.

    Args:
        measure: what is measured of a class.
        several: whether there is a before and an after.
        shown: those to look at first.
        rest: the others, with smaller changes.
        missing: what the run folder lacks, in a sentence; empty if nothing.
    """

    measure: str
    several: bool
    shown: tuple[ClassRow, ...]
    rest: tuple[ClassRow, ...]
    missing: str = ""


def by_class(run: Run) -> ByClass | None:
    """Read what became of each class; none if the records say nothing of classes."""
    key, measure = ("class_accuracy", "Accuracy") if run.kind == IMAGES else ("class_iou", "IoU")
    stages = [stage for stage in run.stages if isinstance(stage.get(key), list)]
    if not stages:
        return None
    first, last = stages[0], stages[-1]
    size = len(last[key])
    names = run.classes if len(run.classes) == size else tuple(f"class {place}" for place in range(size))
    earlier = _values(first, key) if len(first[key]) == size and first is not last else (None,) * size
    counts, missing = _confusion(run.folder, last, size)
    rows = []
    for place, (name, before, after) in enumerate(zip(names, earlier, _values(last, key), strict=True)):
        if counts is None:
            rows.append(ClassRow(name, before, after))
            continue
        wrong = [0 if other == place else count for other, count in enumerate(counts[place])]
        times = max(wrong)
        other = names[wrong.index(times)] if times else ""
        rows.append(ClassRow(name, before, after, sum(counts[place]), other, times))
    if first is not last:
        rows.sort(key=lambda row: (row.change is None, -(row.change or 0.0)))
    shown, rest = rows, list[ClassRow]()
    if len(rows) > 2 * MOST + FEW:
        shown, rest = [*rows[:MOST], *rows[-MOST:]], rows[MOST:-MOST]
    return ByClass(measure, first is not last, tuple(shown), tuple(rest), missing)


def _values(record: Record, key: str) -> tuple[float | None, ...]:
    return tuple(number({"value": value}, "value") for value in record[key])


def _confusion(folder: Path, stage: Record, size: int) -> tuple[list[list[int]] | None, str]:
    """A row per label, a column per prediction; else why there is none."""
    name = f"confusion/epoch-{stage['epoch']:03d}.csv"
    path = folder / name
    if not path.is_file():
        return None, f"How many of each class were measured is not known: {name} is missing from the folder."
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows: Sequence[Sequence[str]] = list(csv.reader(file))[1:]
        counts = [[int(cell) for cell in row[1:]] for row in rows]
        if len(counts) != size or any(len(row) != size for row in counts):
            raise ValueError("it is about other classes")
    except (OSError, ValueError, csv.Error) as error:
        return None, f"How many of each class were measured is not known: {name} cannot be read ({error})."
    return counts, ""
