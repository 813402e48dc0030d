"""Header and cells of a table as text, shared by all output formats and the page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ducats.report.method_tables.build import TaskTable, TaskTableRow
from ducats.report.method_tables.paired_test import PairedTest
from ducats.report.run_kinds import Measure
from ducats.report.tables import MeanStd, format_value


@dataclass(frozen=True)
class TableHeader:
    """Header of a column.

    Args:
        task: name of the task; empty if the data has no tasks or the column covers all of them.
        title: the measure or other content; empty if the task is enough.
        is_task_column: whether the column is about one task; else about all of them.
    """

    task: str
    title: str
    is_task_column: bool = False


@dataclass(frozen=True)
class TableLine:
    """A line of results.

    Args:
        cells: one per column.
        best_indices: indices of the cells with the best mean of their column.
        is_published: whether these are published results of the method; else results of our runs.
        has_unpublished_settings: whether the settings of our runs differ from the published ones.
    """

    method: str
    cells: tuple[str, ...]
    best_indices: frozenset[int] = frozenset()
    is_published: bool = False
    has_unpublished_settings: bool = False


def table_headers(table: TaskTable) -> list[TableHeader]:
    """Return the headers: tasks, their average if there are several, seeds, labels and seconds."""
    has_several_measures = len(table.measures) > 1
    titles = {m.key: m.title.removesuffix(" %") for m in table.measures}
    headers = [
        TableHeader(task, titles[key] if has_several_measures or not task else "", True)
        for task, key in table.columns
    ]
    if len(table.tasks) > 1:
        headers += [
            TableHeader("", f"Average, {title}" if has_several_measures else "Average")
            for title in titles.values()
        ]
    return [*headers, *(TableHeader("", t) for t in ("Seeds", table.kind.measure("labels").title, "Seconds"))]


def result_lines(table: TaskTable) -> list[TableLine]:
    """Return a line of results for each method, followed by its published results, if any."""
    best_methods = [
        table.best_methods({r.method: r.values[column] for r in table.rows if column in r.values})
        for column in table.columns
    ]
    if len(table.tasks) > 1:
        best_methods += [
            table.best_methods({r.method: r.averages[m.key] for r in table.rows if m.key in r.averages})
            for m in table.measures
        ]
    lines = []
    for row in table.rows:
        cells = _cells(table, row.values, row.averages)
        cost_cells = (str(len(row.seeds)), f"{row.labels:,.0f}", f"{row.seconds:,.0f}")
        best_indices = frozenset(index for index, names in enumerate(best_methods) if row.method in names)
        lines.append(TableLine(row.method, (*cells, *cost_cells), best_indices))
        if row.published:
            lines.append(_published_line(table, row))
    return lines


def difference_lines(table: TaskTable) -> list[TableLine]:
    """Return a line per method: difference, p and number of pairs for each method it is compared with."""
    if not any(row.paired_tests for row in table.rows):
        return []
    return [
        TableLine(row.method, tuple(cell for other in table.baselines for cell in _test_cells(row, other)))
        for row in table.rows
    ]


def _published_line(table: TaskTable, row: TaskTableRow) -> TableLine:
    values = {
        (task, key): result.tasks[task]
        for key, result in row.published.items()
        for task in table.tasks
        if task in result.tasks
    }
    averages = {key: result.average_over(table.tasks) for key, result in row.published.items()}
    average = {key: value for key, value in averages.items() if value is not None}
    cells = (*_cells(table, values, average), "", "", "")
    return TableLine(
        row.method, cells, is_published=True, has_unpublished_settings=bool(row.unpublished_settings)
    )


def _cells(
    table: TaskTable, values: Mapping[tuple[str, str], MeanStd], average: Mapping[str, MeanStd]
) -> list[str]:
    display_measures: dict[str, Measure] = {
        measure.key: replace(measure, digits=1) for measure in table.measures
    }
    cells = [format_value(values.get(column), display_measures[column[1]]) for column in table.columns]
    if len(table.tasks) > 1:
        cells += [format_value(average.get(key), measure) for key, measure in display_measures.items()]
    return cells


def _test_cells(row: TaskTableRow, other: str) -> tuple[str, str, str]:
    if other == row.method:
        return "", "", ""
    test = row.paired_tests.get(other)
    if test is None:
        return "–", "–", "–"
    return f"{100 * test.difference:+.1f}", format_p_value(test), str(test.n_pairs)


def format_p_value(test: PairedTest) -> str:
    """Format the p-value of a test."""
    if test.p is None:
        return "–"
    return "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
