"""Tables of methods by tasks as Markdown, CSV and LaTeX."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import format_value
from ducats.report.method_tables.build import PairedTest, TaskTable, TaskTableRow
from ducats.report.table import Cell, Table, escape_markdown, make_table, to_csv, to_latex, to_markdown
from ducats.report.tasks import format_task
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

TABLE_NOTE = (
    "last stage of finished runs, mean ± sample standard deviation over seeds; the best is bold. Labels and "
    "seconds are per run. Differences in points are between runs with the same task and seed; p is from a "
    "two-sided paired t-test."
)


def task_tables_markdown(tables: Sequence[TaskTable]) -> str:
    """Format all tables, their paired differences and notes as Markdown."""
    blocks = []
    for table in tables:
        blocks += [f"## {escape_markdown(table.data_name) or 'runs'}: {describe_table(table)}\n"]
        blocks += map(to_markdown, _text_tables(table))
        blocks += [f"{table.measures[0].title}: {TABLE_NOTE}\n"] if table.measures else []
        blocks += ["".join(f"- {escape_markdown(note)}\n" for note in table.notes)] if table.notes else []
    return "\n".join(blocks)


def task_tables_latex(tables: Sequence[TaskTable]) -> str:
    """Format all tables as LaTeX with booktabs; notes become comments."""
    lines = []
    for table in tables:
        lines += [f"% {table.data_name or 'runs'}: {describe_table(table)}"]
        lines += [f"% {note}" for note in table.notes]
        lines += map(to_latex, _text_tables(table))
    return "\n".join(lines)


def task_tables_csv(tables: Sequence[TaskTable]) -> str:
    """Format all tables as one CSV, unrounded, with a line per method, task (or average) and measure."""
    baselines = list(dict.fromkeys(baseline for table in tables for baseline in table.baselines))
    titles = ["data", "method", "task", "measure", "mean", "deviation", "published", "published_deviation"]
    titles += ["seeds", "labels", "seconds"]
    titles += [
        f"{prefix}_{baseline}" for baseline in baselines for prefix in ("minus", "p_against", "pairs_with")
    ]
    rows: list[list[Cell]] = []
    for table in tables:
        for row in table.rows:
            for measure in table.measures:
                published = row.published.get(measure.key)
                for task in (*table.tasks, None):  # None: the average
                    if task is None:
                        own = row.averages.get(measure.key)
                        theirs = published.average_over(table.tasks) if published else None
                    else:
                        own = row.values.get((task, measure.key))
                        theirs = published.tasks.get(task) if published else None
                    has_tests = task is None and measure is table.measures[0]
                    tests = [row.paired_tests.get(name) if has_tests else None for name in baselines]
                    cells: list[Cell] = [
                        table.data_name,
                        row.method,
                        "average" if task is None else task,
                        measure.key,
                    ]
                    cells += [*_mean_and_deviation(own), *_mean_and_deviation(theirs)]
                    cells += [len(row.seeds), row.labels, row.seconds]
                    rows.append([*cells, *(cell for test in tests for cell in _test_values(test))])
    return to_csv(make_table(titles, rows))


def describe_table(table: TaskTable) -> str:
    """Return the number of methods and tasks of a table in words."""
    tasks_text = f", {len(table.tasks)} tasks" if len(table.tasks) > 1 else ""
    return pluralise(len(table.rows), "method") + tasks_text


def result_table(table: TaskTable) -> Table:
    """Return the results of each method, followed by its published results: tasks, average, costs."""
    has_several_measures, has_average = len(table.measures) > 1, len(table.tasks) > 1
    measure_titles = {measure.key: measure.title.removesuffix(" %") for measure in table.measures}
    titles = ["Method"]
    for task, key in table.columns:
        names = (format_task(task), measure_titles[key] if has_several_measures or not task else "")
        titles.append(", ".join(filter(None, names)))
    if has_average:
        titles += [f"Average, {t}" if has_several_measures else "Average" for t in measure_titles.values()]
    titles += ["Seeds", table.kind.measure("labels").title, "Seconds"]
    best_methods = [
        table.best_methods({r.method: r.values[column] for r in table.rows if column in r.values})
        for column in table.columns
    ]
    if has_average:
        best_methods += [
            table.best_methods({r.method: r.averages[m.key] for r in table.rows if m.key in r.averages})
            for m in table.measures
        ]
    rows: list[tuple[Cell, ...]] = []
    methods: list[str] = []
    best: set[tuple[int, int]] = set()
    for row in table.rows:
        best |= {(len(rows), n) for n, names in enumerate(best_methods, start=1) if row.method in names}
        costs = (str(len(row.seeds)), f"{row.labels:,.0f}", f"{row.seconds:,.0f}")
        rows.append((row.method, *_value_cells(table, row.values, row.averages), *costs))
        methods.append(row.method)
        if row.published:
            rows.append(_published_cells(table, row))
            methods.append("")
    return Table(tuple(titles), tuple(rows), frozenset(best), methods=tuple(methods))


def difference_table(table: TaskTable) -> Table | None:
    """Return the difference, p and number of pairs of each method and baseline; None without tests."""
    if not any(row.paired_tests for row in table.rows):
        return None
    titles = [title for baseline in table.baselines for title in (f"minus {baseline}", "p", "pairs")]
    rows = [
        (row.method, *(cell for other in table.baselines for cell in _test_cells(row, other)))
        for row in table.rows
    ]
    return Table(("Method", *titles), tuple(rows), methods=tuple(row.method for row in table.rows))


def format_p_value(test: PairedTest) -> str:
    """Format the p-value of a test."""
    if test.p is None:
        return "–"
    return "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"


def _text_tables(table: TaskTable) -> list[Table]:
    return [each for each in (result_table(table), difference_table(table)) if each is not None and each.rows]


def _published_cells(table: TaskTable, row: TaskTableRow) -> tuple[str, ...]:
    values = {
        (task, key): result.tasks[task]
        for key, result in row.published.items()
        for task in table.tasks
        if task in result.tasks
    }
    averages = {key: result.average_over(table.tasks) for key, result in row.published.items()}
    name = f"published{'†' if row.unpublished_settings else ''}"
    return (name, *_value_cells(table, values, averages), "", "", "")


def _value_cells(
    table: TaskTable, values: Mapping[tuple[str, str], MeanStd], averages: Mapping[str, MeanStd | None]
) -> list[str]:
    measures = {measure.key: replace(measure, digits=1) for measure in table.measures}
    cells = [format_value(values.get(column), measures[column[1]]) for column in table.columns]
    if len(table.tasks) > 1:
        cells += [format_value(averages.get(key), measure) for key, measure in measures.items()]
    return cells


def _test_cells(row: TaskTableRow, other: str) -> tuple[str, str, str]:
    if other == row.method:
        return "", "", ""
    test = row.paired_tests.get(other)
    if test is None:
        return "–", "–", "–"
    return f"{100 * test.difference:+.1f}", format_p_value(test), str(test.n_pairs)


def _mean_and_deviation(value: MeanStd | None) -> list[Cell]:
    return [None, None] if value is None else [value.mean, value.std]


def _test_values(test: PairedTest | None) -> list[Cell]:
    return [None, None, None] if test is None else [test.difference, test.p, test.n_pairs]


TABLE_WRITERS: Mapping[str, Callable[[Sequence[TaskTable]], str]] = {
    "md": task_tables_markdown,
    "csv": task_tables_csv,
    "latex": task_tables_latex,
}


def format_from_path(out: Path | None) -> str:
    """Return the format for a file name; Markdown for None."""
    if out is None:
        return "md"
    known = {".md": "md", ".csv": "csv", ".tex": "latex"}
    if out.suffix not in known:
        raise UserError(
            f"cannot infer the format of {out.name}. Use --format, or a file name with {', '.join(known)}"
        )
    return known[out.suffix]
