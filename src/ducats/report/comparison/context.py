"""Template context of a comparison: tables, curves, ranks, costs and missing runs."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from ducats.report.comparison import figures
from ducats.report.comparison.missing import MissingRun, describe_missing_pairs, find_missing_runs
from ducats.report.comparison.ranks import Ranking, rank_methods
from ducats.report.comparison.sentences import ranking_note, result_sentences
from ducats.report.figures.style import PLOT_COLOURS, LineStyle, assign_line_styles
from ducats.report.headline import Headline, make_headline
from ducats.report.method_tables import (
    TABLE_NOTE,
    TaskTable,
    build_tables,
    difference_lines,
    result_lines,
    table_headers,
)
from ducats.report.run_reader import BrokenRun, Run
from ducats.report.tables import aggregate_methods, method_names
from ducats.report.tasks import format_task, task_name

DEFAULT_BASELINES = ("random", "duc")  # methods that all others are compared with, as in `ducats table`
MAX_COLOURED_METHODS = len(PLOT_COLOURS) - 1  # methods with a colour of their own; the others are grey


def build_comparison(
    runs: Sequence[Run], broken: Sequence[BrokenRun] = (), id_prefix: str = ""
) -> dict[str, Any] | None:
    """Return the template context of the comparison; None if there is nothing to compare.

    Args:
        broken: run folders that could not be read; they are listed as missing.
        id_prefix: prefix of HTML ids, for pages with several comparisons.
    """
    tables = build_tables(runs, DEFAULT_BASELINES)
    tasks = [(table, task) for table in tables for task in table.tasks]
    multi_task = len(tasks) > 1
    if not multi_task and not any(map(_adds_information, tables)):
        return None
    rankings = [rank_methods(table) for table in tables]
    line_styles = (
        _ordered_line_styles(runs, rankings) if multi_task else assign_line_styles(method_names(runs))
    )
    # Task numbers continue across tables; the filter of the page uses them.
    starts = accumulate((len(table.tasks) for table in tables), initial=0)
    table_contexts = [
        _table_context(table, table_ranking, line_styles, f"{id_prefix}{start}-")
        | _task_context(
            table, {task: start + n for n, task in enumerate(table.tasks)}, line_styles, id_prefix, multi_task
        )
        for table, table_ranking, start in zip(tables, rankings, starts, strict=False)
    ]
    return {
        "id_prefix": id_prefix,
        "multi_task": multi_task,
        "headline": _headline_sentence(tables),
        "runs": sum(len(table.runs) for table in tables),
        "tasks": [_task_name(table, task, len(tables) > 1) for table, task in tasks],
        "tables": table_contexts,
        "missing": [
            (missing_run, _task_number(missing_run, tasks)) for missing_run in find_missing_runs(runs, broken)
        ],
        "line_styles": line_styles,
    }


def overall_headline(runs: Sequence[Run]) -> Headline:
    """Return the result of runs of one kind in words, over all tasks if there are several."""
    if not covers_several_tasks(runs):
        return make_headline(aggregate_methods(runs), runs[0].kind)
    return Headline(_headline_sentence(build_tables(runs, DEFAULT_BASELINES)))


def covers_several_tasks(runs: Sequence[Run]) -> bool:
    """Whether the finished runs cover several tasks."""
    return sum(len(table.tasks) for table in build_tables(runs, DEFAULT_BASELINES)) > 1


def _adds_information(table: TaskTable) -> bool:
    """Whether a table of one task adds paired tests or published results to the page."""
    rows = [row for row in table.rows if row.scores]
    return len(rows) > 1 and any(row.published or any(row.paired_tests.values()) for row in rows)


def _ordered_line_styles(runs: Sequence[Run], rankings: Sequence[Ranking | None]) -> dict[str, LineStyle]:
    """Return line styles; ``DEFAULT_BASELINES`` get the first ones, then methods by rank, then the rest."""
    names = method_names(runs)
    ranked_names = [rank.method for ranking in rankings if ranking is not None for rank in ranking.ranks]
    return assign_line_styles(
        list(dict.fromkeys([*(name for name in DEFAULT_BASELINES if name in names), *ranked_names, *names]))
    )


def _headline_sentence(tables: Sequence[TaskTable]) -> str:
    if len(tables) == 1:
        return result_sentences(tables[0])[0]
    count = len({row.method for table in tables for row in table.rows})
    tasks = sum(len(table.tasks) for table in tables)
    return f"{count} method{'' if count == 1 else 's'} on {tasks} tasks of {len(tables)} data sets."


def _task_name(table: TaskTable, task: str, has_several_data_sets: bool) -> str:
    name = format_task(task) or table.data_name or "runs"
    return f"{table.data_name} {name}" if has_several_data_sets and task else name


def _task_number(missing_run: MissingRun, tasks: Sequence[tuple[TaskTable, str]]) -> str:
    """Return the task number of a missing run; empty if no table has the task."""
    task_numbers = [
        n
        for n, (table, task) in enumerate(tasks)
        if (table.data_name, task) == (missing_run.data_name, missing_run.task)
    ]
    return str(task_numbers[0]) if task_numbers else ""


def _table_context(
    table: TaskTable, ranking: Ranking | None, line_styles: Mapping[str, LineStyle], id_prefix: str
) -> dict[str, Any]:
    """Return the context of a data set over all its tasks."""
    costs = {
        cost_key: figures.draw_score_against_cost(table, cost_key, line_styles, f"{id_prefix}{cost_key}")
        for cost_key in ("seconds", "memory")
    }
    return {
        "data_name": table.data_name or "runs",
        "score": table.kind.score_name,
        "sentences": result_sentences(table),
        "baselines": table.baselines,
        "differences": difference_lines(table),
        "notes": [*filter(None, [describe_missing_pairs(table)]), *table.notes],
        "line_styles": line_styles,
        "ranks": Markup(figures.draw_ranks(ranking, line_styles, f"{id_prefix}ranks")) if ranking else "",
        "ranking_note": ranking_note(ranking) if len(table.rows) > 1 else "",
        "critical_difference": ranking.critical_difference if ranking else None,
        "costs": {
            cost_key: (len(figures.method_costs(table, cost_key)), Markup(figure))
            for cost_key, figure in costs.items()
            if figure
        },
    }


def _task_context(
    table: TaskTable,
    task_numbers: Mapping[str, int],
    line_styles: Mapping[str, LineStyle],
    id_prefix: str,
    multi_task: bool,
) -> dict[str, Any]:
    """Return the context of a data set by task. A single task has its curves elsewhere on the page.

    Args:
        task_numbers: task numbers by task.
        id_prefix: prefix of HTML ids.
        multi_task: whether the page has several tasks.
    """
    table_methods = {row.method for row in table.rows}
    ordered = [name for name in line_styles if name in table_methods]
    coloured_styles = {name: line_styles[name] for name in ordered[:MAX_COLOURED_METHODS]}
    return {
        "task_numbers": " ".join(map(str, task_numbers.values())),
        "columns": [
            (header, task_numbers[header.task] if header.is_task_column else "")
            for header in table_headers(table)
        ],
        "lines": result_lines(table) if multi_task or any(row.published for row in table.rows) else [],
        "note": f"{table.measures[0].title}: {TABLE_NOTE}" if table.measures else "",
        "coloured_styles": coloured_styles,
        "grey_methods": ordered[MAX_COLOURED_METHODS:],
        "curves": [
            _curve_context(table, task, task_numbers[task], coloured_styles, id_prefix)
            for task in table.tasks
        ]
        if multi_task
        else [],
    }


def _curve_context(
    table: TaskTable, task: str, task_number: int, coloured_styles: Mapping[str, LineStyle], id_prefix: str
) -> dict[str, Any]:
    runs = [run for run in table.runs if task_name(run) == task]
    name = format_task(task) or table.data_name
    title = f"{table.kind.score_name} over {table.kind.labels_axis} on {name}, one line per method"
    return {
        "task_number": task_number,
        "name": name,
        "runs": len(runs),
        "methods": len(method_names(runs)),
        "figure": Markup(
            figures.draw_task_curves(runs, coloured_styles, f"{id_prefix}{task_number}-curves", title)
        ),
    }
