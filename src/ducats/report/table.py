"""The table type of pages, files and terminals, and its writers; `macros.html` writes it as HTML."""

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from rich.markup import escape
from rich.table import Table as TerminalTable

from ducats.utils.csv_files import write_csv

EMPTY_CELL = "–"
Cell = str | float | None
_Row = TypeVar("_Row")
LATEX_SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "–": "--", "<": "$<$", "→": r"$\to$", "†": r"$^\dagger$", "λ": r"$\lambda$"},
}


@dataclass(frozen=True)
class Table:
    """Column titles and rows of cells; the first cell names the row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()  # row and column of the best values, which are highlighted
    n_text_columns: int = 1  # leading columns aligned to the left; the others are aligned to the right
    # Method of each row, whose line style a page shows; empty for a row of published results.
    methods: tuple[str, ...] = ()
    # Titles of groups of the columns after the first, and their numbers of columns.
    groups: tuple[tuple[str, int], ...] = ()

    @property
    def group_starts(self) -> set[int]:
        """Indices of the first column of each group."""
        return set(accumulate((span for _, span in self.groups), initial=1)) if self.groups else set()


def make_table(titles: Iterable[str], rows: Iterable[Sequence[Cell]], n_text_columns: int = 1) -> Table:
    """Make a table without highlights."""
    return Table(tuple(titles), tuple(map(tuple, rows)), n_text_columns=n_text_columns)


def table_of(rows: Iterable[_Row], columns: Mapping[str, Callable[[_Row], Cell]]) -> Table:
    """Make a table with a line for each of ``rows``; the columns map titles to functions of a row."""
    return make_table(columns, ([cell(row) for cell in columns.values()] for row in rows))


def to_markdown(table: Table) -> str:
    """Write a table as Markdown; the best values are bold."""
    lines = [
        [escape_markdown(title) for title in table.titles],
        ["---" if column < table.n_text_columns else "---:" for column in range(len(table.titles))],
        *_marked_rows(table, [[escape_markdown(str(cell)) for cell in row] for row in table.rows], "**{}**"),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def to_latex(table: Table) -> str:
    """Write a table as LaTeX with booktabs; the best values are bold."""
    cells = [[escape_latex(str(cell)) for cell in row] for row in table.rows]
    head, *rows = [
        " & ".join(line) + r" \\"
        for line in (map(escape_latex, table.titles), *_marked_rows(table, cells, r"\textbf{{{}}}"))
    ]
    alignment = "l" * table.n_text_columns + "r" * (len(table.titles) - table.n_text_columns)
    lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*lines, *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(table: Table) -> str:
    """Write a table as CSV; None is an empty cell."""
    text = io.StringIO()
    write_csv(text, [table.titles, *table.rows])
    return text.getvalue()


def to_terminal(table: Table, caption: str | None = None, *, no_wrap: bool = False) -> TerminalTable:
    """Return a table for a terminal."""
    result = TerminalTable(header_style="bold", caption=caption)
    for column, title in enumerate(table.titles):
        justify = "left" if column < table.n_text_columns else "right"
        result.add_column(title, justify=justify, no_wrap=no_wrap)  # type: ignore[arg-type]
    for row in table.rows:
        result.add_row(*(escape(str(cell)) for cell in row))
    return result


def escape_markdown(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    escaped = html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
    return escaped.replace("&lt; ", "< ")  # starts no tag: p < 0.001


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return re.sub(".", lambda found: LATEX_SIGNS.get(found[0], found[0]), text)


def _marked_rows(table: Table, cells: Sequence[Sequence[str]], bold: str) -> list[list[str]]:
    return [
        [bold.format(cell) if (row, column) in table.best else cell for column, cell in enumerate(line)]
        for row, line in enumerate(cells)
    ]
