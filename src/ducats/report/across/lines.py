"""Header and cells of a table as text, shared by all output formats and the page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ducats.report.across.making import Row, Table
from ducats.report.across.paired import Paired
from ducats.report.kinds import Measure
from ducats.report.tables import Spread, paper


@dataclass(frozen=True)
class Head:
    """Header of a column.

    Args:
        task: name of the task; empty if the data has no tasks or the column covers all of them.
        title: the measure or other content; empty if the task is enough.
        of_task: whether the column is about one task; else about all of them.
    """

    task: str
    title: str
    of_task: bool = False


@dataclass(frozen=True)
class Line:
    """A line of results.

    Args:
        cells: one per column.
        best: indices of the cells with the best mean of their column.
        published: whether these are published results of the method; else results of our runs.
        unlike: whether the settings of our runs differ from the published ones.
    """

    method: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    published: bool = False
    unlike: bool = False


def heads(table: Table) -> list[Head]:
    """Return the headers: tasks, their average if there are several, seeds, labels and seconds."""
    many = len(table.measures) > 1
    titles = {m.key: m.title.removesuffix(" %") for m in table.measures}
    found = [Head(task, titles[key] if many or not task else "", True) for task, key in table.columns]
    if len(table.tasks) > 1:
        found += [Head("", f"Average, {title}" if many else "Average") for title in titles.values()]
    return [*found, *(Head("", t) for t in ("Seeds", table.kind.measure("labels").title, "Seconds"))]


def numbers(table: Table) -> list[Line]:
    """Return a line of results for each method, followed by its published results, if any."""
    firsts = [
        table.best({r.method: r.values[column] for r in table.rows if column in r.values})
        for column in table.columns
    ]
    if len(table.tasks) > 1:
        firsts += [
            table.best({r.method: r.average[m.key] for r in table.rows if m.key in r.average})
            for m in table.measures
        ]
    lines = []
    for row in table.rows:
        cells = _cells(table, row.values, row.average)
        spent = (str(len(row.seeds)), f"{row.labels:,.0f}", f"{row.seconds:,.0f}")
        best = frozenset(place for place, names in enumerate(firsts) if row.method in names)
        lines.append(Line(row.method, (*cells, *spent), best))
        if row.published:
            lines.append(_published(table, row))
    return lines


def compared(table: Table) -> list[Line]:
    """Return a line per method: difference, p and number of pairs for each method it is compared with."""
    if not any(row.against for row in table.rows):
        return []
    return [
        Line(row.method, tuple(cell for other in table.others for cell in _test(row, other)))
        for row in table.rows
    ]


def _published(table: Table, row: Row) -> Line:
    values = {
        (task, key): known.tasks[task]
        for key, known in row.published.items()
        for task in table.tasks
        if task in known.tasks
    }
    averages = {key: known.average_over(table.tasks) for key, known in row.published.items()}
    average = {key: value for key, value in averages.items() if value is not None}
    cells = (*_cells(table, values, average), "", "", "")
    return Line(row.method, cells, published=True, unlike=bool(row.unlike))


def _cells(
    table: Table, values: Mapping[tuple[str, str], Spread], average: Mapping[str, Spread]
) -> list[str]:
    shown: dict[str, Measure] = {measure.key: replace(measure, digits=1) for measure in table.measures}
    cells = [paper(values.get(column), shown[column[1]]) for column in table.columns]
    if len(table.tasks) > 1:
        cells += [paper(average.get(key), measure) for key, measure in shown.items()]
    return cells


def _test(row: Row, other: str) -> tuple[str, str, str]:
    if other == row.method:
        return "", "", ""
    test = row.against.get(other)
    if test is None:
        return "–", "–", "–"
    return f"{100 * test.difference:+.1f}", chance(test), str(test.pairs)


def chance(test: Paired) -> str:
    """Format the p-value of a test."""
    if test.p is None:
        return "–"
    return "< 0.001" if test.p < 0.001 else f"{test.p:.3f}"
