"""Results of each class before the first and after the last labels, with the most frequent confusion."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    size = len(last[key])
    names = _class_names(run, last, size)
    first_values = dict(zip(_class_names(run, first, len(first[key])), _values(first, key), strict=True))
    before_values = [first_values.get(name) if first is not last else None for name in names]
    counts, missing_note = _confusion(run.folder, last, size)
    rows = []
    after_values = _values(last, key)
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


def _class_names(run: Run, stage: Record, size: int) -> tuple[str, ...]:
    """Return the names of a stage's classes; the test set may have some that the run did not know."""
    recorded = stage.get("class_names")
    if not isinstance(recorded, list) or len(recorded) != size:
        return run.class_names(size)
    return tuple(translate_word(str(name), run.class_list.changes) for name in recorded)


def _values(record: Record, key: str) -> tuple[float | None, ...]:
    return tuple(finite_number({"value": value}, "value") for value in record[key])


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
