"""Output of tables as Markdown, CSV and LaTeX."""

import csv as comma_separated
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats.errors import UserError
from ducats.report.across.lines import compared, heads, numbers
from ducats.report.across.making import Table
from ducats.report.across.paired import Paired
from ducats.report.tables import Spread, in_a_cell

Cells = list[list[str]]
HOW = (
    "last stage of finished runs, mean ± sample standard deviation over seeds; the best is bold. Labels and "
    "seconds are per run. Differences in points are between runs with the same task and seed; p is from a "
    "two-sided paired t-test."
)


def markdown(tables: Sequence[Table]) -> str:
    """Format all tables, their paired differences and notes as Markdown."""
    said = []
    for table in tables:
        how = [f"{table.measures[0].title}: {HOW}\n"] if table.measures else []
        said += [
            f"## {in_a_cell(table.data) or 'runs'}: {title(table)}\n",
            *map(_grid, _parts(table, MARKDOWN)),
            *how,
        ]
        said += ["".join(f"- {in_a_cell(note)}\n" for note in table.notes)] if table.notes else []
    return "\n".join(said)


def latex(tables: Sequence[Table]) -> str:
    """Format all tables as LaTeX with booktabs; notes become comments."""
    lines = []
    for table in tables:
        lines += [f"% {table.data or 'runs'}: {title(table)}", *(f"% {note}" for note in table.notes)]
        for cells in _parts(table, LATEX):
            head, *rows = [" & ".join(line) + r" \\" for line in cells]
            lines += [rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}", r"\toprule", head, r"\midrule"]
            lines += [*rows, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def csv(tables: Sequence[Table]) -> str:
    """Format all tables as one CSV, unrounded, with a line per method, task (or average) and measure."""
    others = list(dict.fromkeys(other for table in tables for other in table.others))
    text = io.StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    compared = [f"{what}_{other}" for other in others for what in ("minus", "p_against", "pairs_with")]
    numbers = ["mean", "deviation", "published", "published_deviation", "seeds", "labels", "seconds"]
    writer.writerow(["data", "method", "task", "measure", *numbers, *compared])
    for table in tables:
        for row in table.rows:
            for measure in table.measures:
                known = row.published.get(measure.key)
                spent = [len(row.seeds), row.labels, row.seconds]
                for task in table.tasks:
                    ours, theirs = (
                        row.values.get((task, measure.key)),
                        known.tasks.get(task) if known else None,
                    )
                    who = [table.data, row.method, task, measure.key]
                    writer.writerow([*who, *_pair(ours), *_pair(theirs), *spent, *[None] * len(compared)])
                ours, theirs = (
                    row.average.get(measure.key),
                    known.average_over(table.tasks) if known else None,
                )
                tests = [row.against.get(other) if measure is table.measures[0] else None for other in others]
                found = [cell for test in tests for cell in _test(test)]
                who = [table.data, row.method, "average", measure.key]
                writer.writerow([*who, *_pair(ours), *_pair(theirs), *spent, *found])
    return text.getvalue()


def title(table: Table) -> str:
    """Return the number of methods and tasks of a table in words."""
    runs = "1 method" if len(table.rows) == 1 else f"{len(table.rows)} methods"
    tasks = f", {len(table.tasks)} tasks" if len(table.tasks) > 1 else ""
    return f"{runs}{tasks}"


@dataclass(frozen=True)
class Style:
    """Markup of an output format.

    Args:
        bold: format string for bold text.
        arrow: symbol between source and target.
        dagger: marks published results with different settings.
        signs: replacements for special characters in numbers.
        escape: escapes text for the format.
    """

    bold: str
    arrow: str
    dagger: str
    signs: Mapping[str, str]
    escape: Callable[[str], str]

    def task(self, name: str) -> str:
        """Format a task name for a column header."""
        return self.escape(name).replace("-", self.arrow)

    def number(self, text: str, best: bool = False) -> str:
        """Format a number for a cell."""
        for sign, written in self.signs.items():
            text = text.replace(sign, written)
        return self.bold.format(text) if best else text


SIGNS = {"±": r"$\pm$", "–": "--", "<": "$<$"}


def _tex(text: str) -> str:
    """Escape text for LaTeX."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    plain = re.sub(r"[\\~^&%$#_{}]", lambda found: named.get(found[0], f"\\{found[0]}"), text)
    for sign, written in {**SIGNS, "→": r"$\to$", "λ": r"$\lambda$"}.items():
        plain = plain.replace(sign, written)
    return plain


MARKDOWN = Style("**{}**", "→", "†", {}, in_a_cell)
LATEX = Style(r"\textbf{{{}}}", r"$\to$", r"$^\dagger$", SIGNS, _tex)


def _parts(table: Table, style: Style) -> list[Cells]:
    """Return the cells of the table and, if there are comparisons, of the paired differences."""
    return [part for part in (_numbers(table, style), _differences(table, style)) if len(part) > 1]


def _numbers(table: Table, style: Style) -> Cells:
    titles = [
        ", ".join(filter(None, (style.task(head.task), style.escape(head.title)))) for head in heads(table)
    ]
    lines = [["Method", *titles]]
    for line in numbers(table):
        cells = [style.number(cell, place in line.best) for place, cell in enumerate(line.cells)]
        below = f"published{style.dagger if line.unlike else ''}"
        lines.append([below if line.published else style.escape(line.method), *cells])
    return lines


def _differences(table: Table, style: Style) -> Cells:
    titles = [title for other in table.others for title in (f"minus {style.escape(other)}", "p", "pairs")]
    found = [[style.escape(line.method), *map(style.number, line.cells)] for line in compared(table)]
    return [["Method", *titles], *found]


def _grid(cells: Cells) -> str:
    head, *rows = cells
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def _pair(value: Spread | None) -> list[float | None]:
    return [None, None] if value is None else [value.mean, value.deviation]


def _test(test: Paired | None) -> list[float | int | None]:
    return [None, None, None] if test is None else [test.difference, test.p, test.pairs]


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {"md": markdown, "csv": csv, "latex": latex}


def format_of(out: Path | None) -> str:
    """Return the format for a file name; Markdown for None."""
    if out is None:
        return "md"
    known = {".md": "md", ".csv": "csv", ".tex": "latex"}
    if out.suffix not in known:
        raise UserError(
            f"cannot infer the format of {out.name}. Use --format, or a file name with {', '.join(known)}"
        )
    return known[out.suffix]
