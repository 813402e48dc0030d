"""Template context of a comparison: tables, curves, ranks, costs and missing runs."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from ducats.figures.style import COLOURS, Look, looks
from ducats.report.across import HOW, Table, compared, heads, numbers, tables_of
from ducats.report.comparison import figures
from ducats.report.comparison.missing import Missing, holes, missing_runs
from ducats.report.comparison.ranks import Ranks, rank_methods
from ducats.report.comparison.words import about_ranks, sentences
from ducats.report.read import Broken, Run
from ducats.report.tables import by_method, methods
from ducats.report.tasks import arrow, task_of
from ducats.report.words import Headline, headline

OTHERS = ("random", "duc")  # methods that all others are compared with, as in `ducats table`
TOLD_APART = len(COLOURS) - 1  # methods with a colour of their own; the others are grey


def comparison(runs: Sequence[Run], broken: Sequence[Broken] = (), key: str = "") -> dict[str, Any] | None:
    """Return the template context of the comparison; None if there is nothing to compare.

    Args:
        broken: run folders that could not be read; they are listed as missing.
        key: prefix of HTML ids, for pages with several comparisons.
    """
    tables = tables_of(runs, OTHERS)
    tasks = [(table, task) for table in tables for task in table.tasks]
    several = len(tasks) > 1
    if not several and not any(map(_tells, tables)):
        return None
    ranks = [rank_methods(table) for table in tables]
    look = _looks(runs, ranks) if several else looks(methods(runs))
    # Task numbers continue across tables; the filter of the page uses them.
    starts = accumulate((len(table.tasks) for table in tables), initial=0)
    made = [
        _table(table, found, look, f"{key}{start}-")
        | _by_task(table, {task: start + n for n, task in enumerate(table.tasks)}, look, key, several)
        for table, found, start in zip(tables, ranks, starts, strict=False)
    ]
    return {
        "key": key,
        "several": several,
        "headline": _headline(tables),
        "runs": sum(len(table.runs) for table in tables),
        "tasks": [_task_name(table, task, len(tables) > 1) for table, task in tasks],
        "tables": made,
        "missing": [(one, _place_of(one, tasks)) for one in missing_runs(runs, broken)],
        "looks": look,
    }


def outcome(runs: Sequence[Run]) -> Headline:
    """Return the result of runs of one kind in words, over all tasks if there are several."""
    if not of_several_tasks(runs):
        return headline(by_method(runs), runs[0].kind)
    return Headline(_headline(tables_of(runs, OTHERS)))


def of_several_tasks(runs: Sequence[Run]) -> bool:
    """Whether the finished runs cover several tasks."""
    return sum(len(table.tasks) for table in tables_of(runs, OTHERS)) > 1


def _tells(table: Table) -> bool:
    """Whether a table of one task adds paired tests or published results to the page."""
    rows = [row for row in table.rows if row.scores]
    return len(rows) > 1 and any(row.published or any(row.against.values()) for row in rows)


def _looks(runs: Sequence[Run], ranks: Sequence[Ranks | None]) -> dict[str, Look]:
    """Return line styles, distinct ones first for the methods in ``OTHERS``, then by rank, then the rest."""
    names = methods(runs)
    best = [rank.method for one in ranks if one is not None for rank in one.ranks]
    return looks(list(dict.fromkeys([*(name for name in OTHERS if name in names), *best, *names])))


def _headline(tables: Sequence[Table]) -> str:
    if len(tables) == 1:
        return sentences(tables[0])[0]
    count = len({row.method for table in tables for row in table.rows})
    tasks = sum(len(table.tasks) for table in tables)
    return f"{count} method{'' if count == 1 else 's'} on {tasks} tasks of {len(tables)} data sets."


def _task_name(table: Table, task: str, several_sets: bool) -> str:
    name = arrow(task) or table.data or "runs"
    return f"{table.data} {name}" if several_sets and task else name


def _place_of(one: Missing, tasks: Sequence[tuple[Table, str]]) -> str:
    """Return the task number of a missing run; empty if no table has the task."""
    found = [n for n, (table, task) in enumerate(tasks) if (table.data, task) == (one.data, one.task)]
    return str(found[0]) if found else ""


def _table(table: Table, ranks: Ranks | None, look: Mapping[str, Look], key: str) -> dict[str, Any]:
    """Return the context of a data set over all its tasks."""
    costs = {what: figures.score_against(table, what, look, f"{key}{what}") for what in ("seconds", "memory")}
    return {
        "data": table.data or "runs",
        "score": table.kind.score,
        "sentences": sentences(table),
        "others": table.others,
        "compared": compared(table),
        "notes": [*filter(None, [holes(table)]), *table.notes],
        "looks": look,
        "ranks": Markup(figures.rank_dots(ranks, look, f"{key}ranks")) if ranks else "",
        "about_ranks": about_ranks(ranks) if len(table.rows) > 1 else "",
        "gap": ranks.gap if ranks else None,
        "costs": {
            what: (len(figures.costs(table, what)), Markup(drawn)) for what, drawn in costs.items() if drawn
        },
    }


def _by_task(
    table: Table, of: Mapping[str, int], look: Mapping[str, Look], key: str, several: bool
) -> dict[str, Any]:
    """Return the context of a data set by task. A single task has its curves elsewhere on the page.

    Args:
        of: task numbers by task.
        key: prefix of HTML ids.
        several: whether the page has several tasks.
    """
    known = {row.method for row in table.rows}
    ordered = [name for name in look if name in known]
    told = {name: look[name] for name in ordered[:TOLD_APART]}
    return {
        "of": " ".join(map(str, of.values())),
        "columns": [(head, of[head.task] if head.of_task else "") for head in heads(table)],
        "lines": numbers(table) if several or any(row.published for row in table.rows) else [],
        "how": f"{table.measures[0].title}: {HOW}" if table.measures else "",
        "told": told,
        "faint": ordered[TOLD_APART:],
        "curves": [_curves(table, task, of[task], told, key) for task in table.tasks] if several else [],
    }


def _curves(table: Table, task: str, place: int, told: Mapping[str, Look], key: str) -> dict[str, Any]:
    runs = [run for run in table.runs if task_of(run) == task]
    name = arrow(task) or table.data
    title = f"{table.kind.score} over {table.kind.axis} on {name}, one line per method"
    return {
        "of": place,
        "name": name,
        "runs": len(runs),
        "methods": len(methods(runs)),
        "figure": Markup(figures.learning_curves(runs, told, f"{key}{place}-curves", title)),
    }
