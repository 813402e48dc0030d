"""Output of tables as Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.report.method_tables.build import TaskTable
from ducats.report.method_tables.lines import difference_lines, result_lines, table_headers
from ducats.report.method_tables.paired_test import PairedTest
from ducats.report.tables import MeanStd, escape_markdown_cell
from ducats.utils.errors import UserError

TextGrid = list[list[str]]
TABLE_NOTE = (
    "last stage of finished runs, mean ± sample standard deviation over seeds; the best is bold. Labels and "
    "seconds are per run. Differences in points are between runs with the same task and seed; p is from a "
    "two-sided paired t-test."
)


def task_tables_markdown(tables: Sequence[TaskTable]) -> str:
    """Format all tables, their paired differences and notes as Markdown."""
    blocks = []
    for table in tables:
        note_blocks = [f"{table.measures[0].title}: {TABLE_NOTE}\n"] if table.measures else []
        blocks += [
            f"## {escape_markdown_cell(table.data_name) or 'runs'}: {describe_table(table)}\n",
            *map(_markdown_grid, _table_grids(table, MARKDOWN_FORMAT)),
            *note_blocks,
        ]
        blocks += (
            ["".join(f"- {escape_markdown_cell(note)}\n" for note in table.notes)] if table.notes else []
        )
    return "\n".join(blocks)


def task_tables_latex(tables: Sequence[TaskTable]) -> str:
    """Format all tables as LaTeX with booktabs; notes become comments."""
    lines = []
    for table in tables:
        lines += [
            f"% {table.data_name or 'runs'}: {describe_table(table)}",
            *(f"% {note}" for note in table.notes),
        ]
        for cells in _table_grids(table, LATEX_FORMAT):
            head, *rows = [" & ".join(line) + r" \\" for line in cells]
            lines += [rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}", r"\toprule", head, r"\midrule"]
            lines += [*rows, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def task_tables_csv(tables: Sequence[TaskTable]) -> str:
    """Format all tables as one CSV, unrounded, with a line per method, task (or average) and measure."""
    baselines = list(dict.fromkeys(baseline for table in tables for baseline in table.baselines))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    test_columns = [
        f"{column_prefix}_{baseline}"
        for baseline in baselines
        for column_prefix in ("minus", "p_against", "pairs_with")
    ]
    value_columns = ["mean", "deviation", "published", "published_deviation", "seeds", "labels", "seconds"]
    writer.writerow(["data", "method", "task", "measure", *value_columns, *test_columns])
    for table in tables:
        for row in table.rows:
            for measure in table.measures:
                published_result = row.published.get(measure.key)
                cost_cells = [len(row.seeds), row.labels, row.seconds]
                for task in table.tasks:
                    own_value, published_value = (
                        row.values.get((task, measure.key)),
                        published_result.tasks.get(task) if published_result else None,
                    )
                    identity_cells = [table.data_name, row.method, task, measure.key]
                    writer.writerow(
                        [
                            *identity_cells,
                            *_mean_and_deviation(own_value),
                            *_mean_and_deviation(published_value),
                            *cost_cells,
                            *[None] * len(test_columns),
                        ]
                    )
                own_value, published_value = (
                    row.averages.get(measure.key),
                    published_result.average_over(table.tasks) if published_result else None,
                )
                tests = [
                    row.paired_tests.get(baseline) if measure is table.measures[0] else None
                    for baseline in baselines
                ]
                test_cells = [cell for test in tests for cell in _test_values(test)]
                identity_cells = [table.data_name, row.method, "average", measure.key]
                writer.writerow(
                    [
                        *identity_cells,
                        *_mean_and_deviation(own_value),
                        *_mean_and_deviation(published_value),
                        *cost_cells,
                        *test_cells,
                    ]
                )
    return text.getvalue()


def describe_table(table: TaskTable) -> str:
    """Return the number of methods and tasks of a table in words."""
    methods_text = "1 method" if len(table.rows) == 1 else f"{len(table.rows)} methods"
    tasks_text = f", {len(table.tasks)} tasks" if len(table.tasks) > 1 else ""
    return f"{methods_text}{tasks_text}"


@dataclass(frozen=True)
class TableFormat:
    """Markup of an output format.

    Args:
        bold: format string for bold text.
        arrow: symbol between source and target.
        dagger: marks published results with different settings.
        replacements: replacements for special characters in numbers.
        escape: escapes text for the format.
    """

    bold: str
    arrow: str
    dagger: str
    replacements: Mapping[str, str]
    escape: Callable[[str], str]

    def task_header(self, name: str) -> str:
        """Format a task name for a column header."""
        return self.escape(name).replace("-", self.arrow)

    def format_number(self, text: str, best: bool = False) -> str:
        """Format a number for a cell."""
        for sign, replacement in self.replacements.items():
            text = text.replace(sign, replacement)
        return self.bold.format(text) if best else text


LATEX_SIGNS = {"±": r"$\pm$", "–": "--", "<": "$<$"}


def _escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    replacements = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escaped = re.sub(r"[\\~^&%$#_{}]", lambda found: replacements.get(found[0], f"\\{found[0]}"), text)
    for sign, replacement in {**LATEX_SIGNS, "→": r"$\to$", "λ": r"$\lambda$"}.items():
        escaped = escaped.replace(sign, replacement)
    return escaped


MARKDOWN_FORMAT = TableFormat("**{}**", "→", "†", {}, escape_markdown_cell)
LATEX_FORMAT = TableFormat(r"\textbf{{{}}}", r"$\to$", r"$^\dagger$", LATEX_SIGNS, _escape_latex)


def _table_grids(table: TaskTable, table_format: TableFormat) -> list[TextGrid]:
    """Return the cells of the table and, if there are comparisons, of the paired differences."""
    return [
        grid
        for grid in (_result_grid(table, table_format), _difference_grid(table, table_format))
        if len(grid) > 1
    ]


def _result_grid(table: TaskTable, table_format: TableFormat) -> TextGrid:
    titles = [
        ", ".join(filter(None, (table_format.task_header(header.task), table_format.escape(header.title))))
        for header in table_headers(table)
    ]
    lines = [["Method", *titles]]
    for line in result_lines(table):
        cells = [
            table_format.format_number(cell, index in line.best_indices)
            for index, cell in enumerate(line.cells)
        ]
        published_label = f"published{table_format.dagger if line.has_unpublished_settings else ''}"
        lines.append([published_label if line.is_published else table_format.escape(line.method), *cells])
    return lines


def _difference_grid(table: TaskTable, table_format: TableFormat) -> TextGrid:
    titles = [
        title
        for baseline in table.baselines
        for title in (f"minus {table_format.escape(baseline)}", "p", "pairs")
    ]
    rows = [
        [table_format.escape(line.method), *map(table_format.format_number, line.cells)]
        for line in difference_lines(table)
    ]
    return [["Method", *titles], *rows]


def _markdown_grid(cells: TextGrid) -> str:
    head, *rows = cells
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def _mean_and_deviation(value: MeanStd | None) -> list[float | None]:
    return [None, None] if value is None else [value.mean, value.std]


def _test_values(test: PairedTest | None) -> list[float | int | None]:
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
