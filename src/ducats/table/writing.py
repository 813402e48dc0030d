"""A table on paper: Markdown, CSV and LaTeX."""

import csv as comma_separated
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ducats.errors import UserError
from ducats.report import Spread
from ducats.report.kinds import Measure
from ducats.report.tables import in_a_cell, paper
from ducats.table.making import Row, Table
from ducats.table.paired import Paired

Cells = list[list[str]]
HOW = (
    "the last stage of finished runs, mean ± sample deviation over seeds; best in bold. Labels and seconds "
    "are of one run. Differences, in points, are over pairs of the same task and seed; p is of a paired "
    "t-test, two-sided."
)


def markdown(tables: Sequence[Table]) -> str:
    """Every table, what it is compared with, and its notes, as Markdown."""
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
    """Every table as LaTeX, for a document that has booktabs; its notes are comments."""
    lines = []
    for table in tables:
        lines += [f"% {table.data or 'runs'}: {title(table)}", *(f"% {note}" for note in table.notes)]
        for cells in _parts(table, LATEX):
            head, *rows = [" & ".join(line) + r" \\" for line in cells]
            lines += [rf"\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}", r"\toprule", head, r"\midrule"]
            lines += [*rows, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def csv(tables: Sequence[Table]) -> str:
    """All tables in one, with full numbers: a line for each method, task and measure, and of averages."""
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
    """How much went into a table, in words."""
    runs = "1 method" if len(table.rows) == 1 else f"{len(table.rows)} methods"
    tasks = f", {len(table.tasks)} tasks" if len(table.tasks) > 1 else ""
    return f"{runs}{tasks}"


@dataclass(frozen=True)
class Style:
    """How a format writes things.

    Args:
        bold: with a place for the text.
        arrow: between source and target.
        dagger: marks what is not quite comparable.
        below: the sign for less than.
        escape: makes any text harmless.
    """

    bold: str
    arrow: str
    dagger: str
    below: str
    escape: Callable[[str], str]

    def task(self, name: str) -> str:
        """A task as a column's title."""
        return self.escape(name).replace("-", self.arrow)


def _tex(text: str) -> str:
    """Text that LaTeX takes as text."""
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    plain = re.sub(r"[\\~^&%$#_{}]", lambda found: named.get(found[0], f"\\{found[0]}"), text)
    return plain.replace("±", r"$\pm$").replace("–", "--").replace("→", r"$\to$").replace("λ", r"$\lambda$")


MARKDOWN = Style("**{}**", "→", "†", "<", in_a_cell)
LATEX = Style(r"\textbf{{{}}}", r"$\to$", r"$^\dagger$", "$<$", _tex)


def _parts(table: Table, style: Style) -> list[Cells]:
    """The table itself and, where there is something to compare with, the differences."""
    return [part for part in (_numbers(table, style), _differences(table, style)) if len(part) > 1]


def _numbers(table: Table, style: Style) -> Cells:
    several, many = len(table.tasks) > 1, len(table.measures) > 1
    titles = {m.key: style.escape(m.title.removesuffix(" %")) for m in table.measures}
    heads = []
    for task, key in table.columns:
        named = style.task(task) if task else titles[key]
        heads.append(f"{named}, {titles[key]}" if task and many else named)
    averages = [f"Average{f', {titles[m.key]}' if many else ''}" for m in table.measures] if several else []
    labels = table.kind.measure("labels").title
    lines = [["Method", *heads, *averages, "Seeds", style.escape(labels), "Seconds"]]
    firsts = {
        column: table.best({r.method: r.values[column] for r in table.rows if column in r.values})
        for column in table.columns
    }
    tops = {
        m.key: table.best({r.method: r.average[m.key] for r in table.rows if m.key in r.average})
        for m in table.measures
    }
    shown = {measure.key: replace(measure, digits=1) for measure in table.measures}
    for row in table.rows:
        cells = [_bold(row.values.get(c), shown[c[1]], row.method in firsts[c], style) for c in table.columns]
        if several:
            cells += [
                _bold(row.average.get(key), m, row.method in tops[key], style) for key, m in shown.items()
            ]
        spent = [str(len(row.seeds)), f"{row.labels:,.0f}", f"{row.seconds:,.0f}"]
        lines.append([style.escape(row.method), *cells, *spent])
        lines += _published(row, table, shown, several, style)
    return lines


def _published(row: Row, table: Table, shown: Mapping[str, Measure], several: bool, style: Style) -> Cells:
    """The line below a method's own: what others say of the same."""
    if not row.published:
        return []
    tasks = [
        row.published[key].tasks.get(task) if key in row.published else None for task, key in table.columns
    ]
    cells = [
        style.escape(paper(value, shown[key])) for value, (_, key) in zip(tasks, table.columns, strict=True)
    ]
    if several:
        for key, measure in shown.items():
            known = row.published.get(key)
            average = known.average_over(table.tasks) if known else None
            cells.append(style.escape(paper(average, measure)))
    return [[f"published{style.dagger if row.unlike else ''}", *cells, "", "", ""]]


def _differences(table: Table, style: Style) -> Cells:
    if not any(row.against for row in table.rows):
        return []
    heads = [head for other in table.others for head in (f"minus {style.escape(other)}", "p", "pairs")]
    lines = [["Method", *heads]]
    for row in table.rows:
        cells = []
        for other in table.others:
            test = row.against.get(other)
            cells += ["", "", ""] if other == row.method else _words(test, style)
        lines.append([style.escape(row.method), *cells])
    return lines


def _words(test: Paired | None, style: Style) -> list[str]:
    dash = style.escape("–")
    if test is None:
        return [dash, dash, dash]
    p = dash if test.p is None else f"{style.below} 0.001" if test.p < 0.001 else f"{test.p:.3f}"
    return [f"{100 * test.difference:+.1f}", p, str(test.pairs)]


def _bold(value: Spread | None, measure: Measure, best: bool, style: Style) -> str:
    text = style.escape(paper(value, measure))
    return style.bold.format(text) if best else text


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
    """The format that a file's name asks for; Markdown where nothing is written."""
    if out is None:
        return "md"
    known = {".md": "md", ".csv": "csv", ".tex": "latex"}
    if out.suffix not in known:
        raise UserError(f"{out.name} says no format: give --format, or a name with {', '.join(known)}")
    return known[out.suffix]
