"""Table of the IoU by class and method, before the first labels and after the last."""

import csv as comma_separated
import io
from collections.abc import Sequence
from dataclasses import dataclass

from ducats.records import Record
from ducats.report.read import Run, number
from ducats.report.tables import Spread, counted, in_a_cell, methods


@dataclass(frozen=True)
class ClassTable:
    """The IoU of every class by method, over seeds.

    Args:
        classes: class names; ``class 0``, ``class 1``, ... if the runs did not record names.
        methods: the methods whose runs recorded the IoU of each class.
        before: by method, one value per class at the first stage; None if the first stage is the last.
        after: by method, one value per class at the last stage; None for a class that never occurs.
        seeds: by method, the number of seeds.
    """

    classes: tuple[str, ...]
    methods: tuple[str, ...]
    before: dict[str, tuple[Spread | None, ...] | None]
    after: dict[str, tuple[Spread | None, ...]]
    seeds: dict[str, int]

    def best(self, place: int) -> set[str]:
        """Return the methods with the highest final IoU of a class; empty if fewer than two have a value."""
        values = {m: v.mean for m in self.methods if (v := self.after[m][place]) is not None}
        return {m for m, v in values.items() if v == max(values.values())} if len(values) > 1 else set()


def class_table(runs: Sequence[Run]) -> ClassTable | None:
    """Build the table from runs of one kind; None without IoUs by class or if the class counts differ."""
    groups = {method: _known(counted(runs, method)) for method in methods(runs)}
    groups = {method: group for method, group in groups.items() if group}
    sizes = {len(record["class_iou"]) for group in groups.values() for ends in group for record in ends}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    names = {run.classes for run in runs if len(run.classes) == size}
    return ClassTable(
        classes=names.pop() if len(names) == 1 else tuple(f"class {place}" for place in range(size)),
        methods=tuple(groups),
        before={
            method: _means([first for first, _ in group], size)
            if any(first is not last for first, last in group)
            else None
            for method, group in groups.items()
        },
        after={method: _means([last for _, last in group], size) for method, group in groups.items()},
        seeds={method: len(group) for method, group in groups.items()},
    )


def markdown(table: ClassTable) -> str:
    """Format the table as Markdown, in percent: before → after, means over seeds."""
    lines = [["IoU %", *(in_a_cell(method) for method in table.methods)]]
    lines.append(["---", *["---:"] * len(table.methods)])
    for place, name in enumerate(table.classes):
        cells = [_change(table, method, place) for method in table.methods]
        lines.append([in_a_cell(name), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def csv(table: ClassTable) -> str:
    """Format the table as CSV with unrounded numbers, one line per method and class."""
    text = io.StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    parts = [f"{when}_{part}" for when in ("before", "after") for part in ("mean", "deviation")]
    writer.writerow(["method", "seeds", "class", *parts])
    for method in table.methods:
        before = table.before[method] or (None,) * len(table.classes)
        for name, *ends in zip(table.classes, before, table.after[method], strict=True):
            cells = [part for end in ends for part in ((end.mean, end.deviation) if end else (None, None))]
            writer.writerow([method, table.seeds[method], name, *cells])
    return text.getvalue()


def percent(value: Spread | None) -> str:
    """Format a fraction as a percentage for a table cell."""
    return "–" if value is None else f"{100 * value.mean:.1f}"


def _change(table: ClassTable, method: str, place: int) -> str:
    before, after = table.before[method], percent(table.after[method][place])
    return after if before is None else f"{percent(before[place])} → {after}"


def _known(group: Sequence[Run]) -> list[tuple[Record, Record]]:
    """Return first and last stage of each run that recorded ``class_iou`` in both."""
    ends = [(run.stages[0], run.stages[-1]) for run in group]
    return [(first, last) for first, last in ends if "class_iou" in first and "class_iou" in last]


def _means(records: Sequence[Record], size: int) -> tuple[Spread | None, ...]:
    found: list[Spread | None] = []
    for place in range(size):
        values = [number({"iou": record["class_iou"][place]}, "iou") for record in records]
        known = [value for value in values if value is not None]
        found.append(Spread.of(known) if known else None)
    return tuple(found)
