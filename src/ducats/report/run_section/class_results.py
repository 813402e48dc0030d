"""Results of each class before the first and after the last labels, with the most frequent confusion."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.runfolder import checksums
from ducats.runfolder.class_changes import translate_word
from ducats.runfolder.records import Record, finite_number
from ducats.runfolder.run_folder import RunFolder

MAX_SHOWN_PER_END = 15  # classes with the largest and with the smallest gain that are always shown
MAX_REST_NOT_COLLAPSED = 3  # the rest is collapsed only if it has more classes than this


@dataclass(frozen=True)
class ClassResult:
    """Results of one class."""

    name: str
    # Accuracy or IoU at the first stage; None if it was not evaluated or there is only one stage.
    before: float | None
    after: float | None  # accuracy or IoU at the last stage; None if it was not evaluated
    # Evaluated images or pixels of the class at the last stage; None if not recorded.
    count: int | None = None
    confused_with: str = ""  # the most frequent wrong prediction; empty if there is none
    confusion_count: int = 0  # how often `confused_with` was predicted

    @property
    def change(self) -> float | None:
        """``after - before``; None if either is missing."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class ClassResults:
    """Results of all classes, sorted by gain, the largest first."""

    metric_name: str
    has_before: bool  # whether there are results both before and after
    shown: tuple[ClassResult, ...]  # the classes shown first
    collapsed: tuple[ClassResult, ...]  # the other classes, with smaller changes
    missing_note: str = ""  # a sentence about data missing from the run folder; empty if there is none


def read_class_results(run: Run) -> ClassResults | None:
    """Read the results of each class; None if the records have no results by class."""
    key, metric_name = ("class_accuracy", "Accuracy") if run.kind == CLASSIFICATION else ("class_iou", "IoU")
    stages = [stage for stage in run.stages if isinstance(stage.get(key), list)]
    if not stages:
        return None
    first, last = stages[0], stages[-1]
    names, after_values, counts, missing_note = _read_stage(run, last, key)
    first_values = dict(zip(*_read_stage(run, first, key)[:2], strict=True))
    before_values = [first_values.get(name) if first is not last else None for name in names]
    rows = []
    for index, (name, before, after) in enumerate(zip(names, before_values, after_values, strict=True)):
        if counts is None:
            rows.append(ClassResult(name, before, after))
            continue
        row = counts[index]
        confusions = [0 if predicted == index else count for predicted, count in enumerate(row)]
        confusion_count = max(confusions)
        confused_with = names[confusions.index(confusion_count)] if confusion_count else ""
        rows.append(ClassResult(name, before, after, sum(row), confused_with, confusion_count))
    if first is not last:
        rows.sort(key=lambda row: (row.change is None, -(row.change or 0.0)))
    shown, collapsed, end = rows, list[ClassResult](), MAX_SHOWN_PER_END
    if len(rows) > 2 * end + MAX_REST_NOT_COLLAPSED:
        shown, collapsed = [*rows[:end], *rows[-end:]], rows[end:-end]
    return ClassResults(metric_name, first is not last, tuple(shown), tuple(collapsed), missing_note)


class _StageResults(NamedTuple):
    """Results of one stage by class; classes that were merged since are one class."""

    names: Sequence[str]
    values: Sequence[float | None]
    counts: Sequence[Sequence[int]] | None  # a row per label and a column per prediction
    missing_note: str


def _read_stage(run: Run, stage: Record, key: str) -> _StageResults:
    recorded = _class_names(run, stage, len(stage[key]))
    values = tuple(finite_number({"value": value}, "value") for value in stage[key])
    counts, missing_note = _confusion(run.folder, stage, len(recorded))
    names = tuple(dict.fromkeys(recorded))
    if len(names) == len(recorded):
        return _StageResults(names, values, counts, missing_note)
    if counts is None:
        known = dict(zip(recorded, values, strict=True))
        single = [known[name] if recorded.count(name) == 1 else None for name in names]
        return _StageResults(names, single, None, missing_note)
    number = [names.index(name) for name in recorded]
    merged = [[0] * len(names) for _ in names]
    for label, row in zip(number, counts, strict=True):
        for predicted, count in zip(number, row, strict=True):
            merged[label][predicted] += count
    return _StageResults(names, [_value(merged, n, key) for n in range(len(names))], merged, missing_note)


def _value(counts: Sequence[Sequence[int]], number: int, key: str) -> float | None:
    """Return the accuracy or the IoU of a class; None if it does not occur."""
    correct, total = counts[number][number], sum(counts[number])
    if key == "class_iou":
        total += sum(row[number] for row in counts) - correct
    return correct / total if total else None


def _class_names(run: Run, stage: Record, size: int) -> tuple[str, ...]:
    """Return the names of a stage's classes; the test set may have some that the run did not know."""
    recorded = stage.get("class_names")
    if not isinstance(recorded, list) or len(recorded) != size:
        return run.class_names(size)
    return tuple(translate_word(str(name), run.class_list.changes) for name in recorded)


def _confusion(folder: Path, stage: Record, size: int) -> tuple[list[list[int]] | None, str]:
    """Return the counts, a row per label and a column per prediction, or None and the reason."""
    path = RunFolder(folder).confusion_file(int(stage["epoch"]))
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        return None, f"The counts of each class are not shown: {name} is missing from the run folder."
    try:
        checksums.verify(path)
        with path.open(newline="", encoding="utf-8") as file:
            rows: Sequence[Sequence[str]] = list(csv.reader(file))[1:]
        counts = [[int(cell) for cell in row[1:]] for row in rows]
        if len(counts) != size or any(len(row) != size for row in counts):
            raise ValueError("its classes do not match those of the run")
    except (OSError, ValueError, csv.Error) as error:
        return None, f"The counts of each class are not shown: {name} cannot be read ({error})."
    return counts, ""
