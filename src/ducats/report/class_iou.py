"""Table of the IoU by class and method, before the first labels and after the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import counted_runs, method_names
from ducats.report.run_reader import Run
from ducats.report.table import EMPTY_CELL, Cell, Table, make_table, to_csv
from ducats.runfolder.records import Record, finite_number


@dataclass(frozen=True)
class ClassTable:
    """The IoU of every class by method, over seeds."""

    # Class names; `class 0`, `class 1`, ... if the runs did not record names.
    class_names: tuple[str, ...]
    methods: tuple[str, ...]  # the methods whose runs recorded the IoU of each class
    # By method, one value per class at the first stage; None if the first stage is the last.
    before: dict[str, tuple[MeanStd | None, ...] | None]
    # By method, one value per class at the last stage; None for a class that never occurs.
    after: dict[str, tuple[MeanStd | None, ...]]
    seeds: dict[str, int]  # by method, the number of seeds

    def change_table(self) -> Table:
        """Return a row per class and a column per method: before → after."""
        rows = [
            [name, *(" → ".join(self._cells(method, index)) for method in self.methods)]
            for index, name in enumerate(self.class_names)
        ]
        return make_table(["IoU %", *self.methods], rows)

    def page_table(self) -> Table:
        """Return a row per class and the columns before and after of each method."""
        titles_by_method = {
            method: ["after"] if self.before[method] is None else ["before", "after"]
            for method in self.methods
        }
        rows = [
            (name, *(cell for method in self.methods for cell in self._cells(method, index)))
            for index, name in enumerate(self.class_names)
        ]
        last_columns = accumulate(map(len, titles_by_method.values()))
        best = {
            (index, column)
            for method, column in zip(self.methods, last_columns, strict=True)
            for index in range(len(rows))
            if method in self._best_methods(index)
        }
        titles = [title for method_titles in titles_by_method.values() for title in method_titles]
        groups = tuple((method, len(titles_by_method[method])) for method in self.methods)
        return Table(("Class", *titles), tuple(rows), frozenset(best), groups=groups)

    def _cells(self, method: str, class_index: int) -> list[str]:
        ends = (self.before[method], self.after[method])
        return [_format_percent(end[class_index]) for end in ends if end is not None]

    def _best_methods(self, class_index: int) -> set[str]:
        """Return the methods with the highest final IoU of a class; empty if fewer than two have a value."""
        values = {m: v.mean for m in self.methods if (v := self.after[m][class_index]) is not None}
        return {m for m, v in values.items() if v == max(values.values())} if len(values) > 1 else set()


def build_class_table(runs: Sequence[Run]) -> ClassTable | None:
    """Build the table from runs of one kind; None without IoUs by class or if the class counts differ."""
    groups = {method: _first_and_last_stages(counted_runs(runs, method)) for method in method_names(runs)}
    groups = {method: group for method, group in groups.items() if group}
    records = [record for group in groups.values() for ends in group for record in ends]
    class_counts = {len(record["class_iou"]) for record in records}
    if len(class_counts) != 1:
        return None
    n_classes = class_counts.pop()
    names = {run.classes for run in runs if len(run.classes) == n_classes}
    return ClassTable(
        class_names=names.pop() if len(names) == 1 else tuple(f"class {n}" for n in range(n_classes)),
        methods=tuple(groups),
        before={
            method: _class_means([first for first, _ in group], n_classes)
            if any(first is not last for first, last in group)
            else None
            for method, group in groups.items()
        },
        after={
            method: _class_means([last for _, last in group], n_classes) for method, group in groups.items()
        },
        seeds={method: len(group) for method, group in groups.items()},
    )


def class_table_csv(table: ClassTable) -> str:
    """Format the table as CSV with unrounded numbers, one line per method and class."""
    titles = ["method", "seeds", "class"]
    titles += [f"{time}_{part}" for time in ("before", "after") for part in ("mean", "deviation")]
    rows: list[list[Cell]] = []
    for method in table.methods:
        before = table.before[method] or (None,) * len(table.class_names)
        for name, *ends in zip(table.class_names, before, table.after[method], strict=True):
            cells = [number for end in ends for number in ((end.mean, end.std) if end else (None, None))]
            rows.append([method, table.seeds[method], name, *cells])
    return to_csv(make_table(titles, rows))


def _format_percent(value: MeanStd | None) -> str:
    return EMPTY_CELL if value is None else f"{100 * value.mean:.1f}"


def _first_and_last_stages(group: Sequence[Run]) -> list[tuple[Record, Record]]:
    """Return first and last stage of each run that recorded ``class_iou`` in both."""
    ends = [(run.stages[0], run.stages[-1]) for run in group]
    return [(first, last) for first, last in ends if "class_iou" in first and "class_iou" in last]


def _class_means(records: Sequence[Record], n_classes: int) -> tuple[MeanStd | None, ...]:
    return tuple(
        MeanStd.from_known(finite_number({"iou": record["class_iou"][index]}, "iou") for record in records)
        for index in range(n_classes)
    )
