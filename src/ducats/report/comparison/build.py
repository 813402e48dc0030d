"""The comparison of a page: tables, curves, ranks, costs and missing runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ducats.report.comparison.missing import describe_missing_pairs, find_missing_runs
from ducats.report.comparison.ranks import Ranking, rank_methods, ranking_note, result_sentences
from ducats.report.figures.comparison import draw_ranks, draw_score_against_cost, method_costs
from ducats.report.figures.curves import CaptionedFigure, draw_mean_over_tasks, draw_task_curves
from ducats.report.figures.style import PLOT_COLOURS, LineStyle, assign_line_styles
from ducats.report.headline import Headline, make_headline
from ducats.report.method_results import aggregate_methods, method_names
from ducats.report.method_tables.build import TaskTable, build_tables
from ducats.report.method_tables.text import difference_table, result_table
from ducats.report.page_budget import text_bytes
from ducats.report.run_reader import BrokenRun, Run
from ducats.report.table import EMPTY_CELL, Table, make_table
from ducats.report.tasks import format_task, task_name
from ducats.utils.findings import pluralise

DEFAULT_BASELINES = ("random", "duc")  # methods that all others are compared with, as in `ducats table`
MAX_COLOURED_METHODS = len(PLOT_COLOURS) - 1  # methods with a colour of their own; the others are grey


@dataclass(frozen=True)
class DataSetComparison:
    """Comparison of the methods on one data set. Figures are SVG text."""

    table: TaskTable
    task_numbers: Mapping[str, int]  # number of each task on the page, which the filter uses
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    results: Table | None  # methods by tasks; None if the page shows them elsewhere
    differences: Table | None  # paired differences; None without tests
    # One per task; empty for a single task, whose curve is elsewhere on the page.
    curves: Mapping[int, CaptionedFigure]
    # Mean over tasks, for the first screen; None for a single task, for other data sets, or if stages differ.
    mean_curve: CaptionedFigure | None
    # Line styles of the methods with a colour of their own in the curves.
    coloured_styles: Mapping[str, LineStyle]
    grey_methods: tuple[str, ...]  # the other methods
    ranking: Ranking | None
    ranking_note: str  # describes the ranks, or says why there are none; empty for one method
    ranks: str  # figure; empty without a ranking
    costs: Mapping[str, CaptionedFigure]  # caption and figure of the score against each cost

    @property
    def column_tasks(self) -> list[int | str]:
        """Task number of each column of ``results``; empty if the column is about all tasks."""
        numbers = [self.task_numbers[task] for task, _ in self.table.columns]
        n_columns = len(self.results.titles) if self.results else 0
        return ["", *numbers, *[""] * (n_columns - 1 - len(numbers))]


@dataclass(frozen=True)
class Comparison:
    """Comparison of the methods on all data sets."""

    id_prefix: str  # prefix of HTML ids, for pages with several comparisons
    headline: str
    n_runs: int
    tasks: tuple[str, ...]  # names of all tasks; a task's number is its index
    data_sets: tuple[DataSetComparison, ...]
    missing: Table  # runs that are not in the tables
    missing_tasks: tuple[str, ...]  # task number of each row of `missing`; empty if no table has the task
    line_styles: Mapping[str, LineStyle]

    @property
    def multi_task(self) -> bool:
        """Whether there are several tasks."""
        return len(self.tasks) > 1

    @property
    def n_figure_bytes(self) -> int:
        """Size of all figures."""
        svgs = [data_set.ranks for data_set in self.data_sets]
        for data_set in self.data_sets:
            svgs += [each.svg for each in (*data_set.curves.values(), *data_set.costs.values())]
            svgs += [data_set.mean_curve.svg] if data_set.mean_curve else []
        return text_bytes(svgs)


def build_comparison(
    runs: Sequence[Run], broken: Sequence[BrokenRun] = (), id_prefix: str = ""
) -> Comparison | None:
    """Compare the methods, and list broken runs as missing; None if there is nothing to compare."""
    tables = build_tables(runs, DEFAULT_BASELINES)
    tasks = [(table, task) for table in tables for task in table.tasks]
    multi_task = len(tasks) > 1
    if not multi_task and not any(map(_adds_information, tables)):
        return None
    rankings = [rank_methods(table) for table in tables]
    line_styles = (
        _ordered_line_styles(runs, rankings) if multi_task else assign_line_styles(method_names(runs))
    )
    starts = accumulate((len(table.tasks) for table in tables), initial=0)
    missing = find_missing_runs(runs, broken)
    numbers = {(table.data_name, task): n for n, (table, task) in reversed(list(enumerate(tasks)))}
    return Comparison(
        id_prefix=id_prefix,
        headline=_headline_sentence(tables),
        n_runs=sum(len(table.runs) for table in tables),
        tasks=tuple(_task_name(table, task, len(tables) > 1) for table, task in tasks),
        data_sets=tuple(
            _compare_methods(table, ranking, start, line_styles, id_prefix, multi_task)
            for table, ranking, start in zip(tables, rankings, starts, strict=False)
        ),
        missing=make_table(
            ("Run", "Method", "Task", "Seed", "Reason"),
            (
                (
                    run.run_name,
                    run.method or EMPTY_CELL,
                    format_task(run.task) or run.data_name or EMPTY_CELL,
                    run.seed or EMPTY_CELL,
                    run.reason + (f" Last log line: “{run.last_log_line}”" if run.last_log_line else ""),
                )
                for run in missing
            ),
        ),
        missing_tasks=tuple(str(numbers.get((run.data_name, run.task), "")) for run in missing),
        line_styles=line_styles,
    )


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
    n_methods = len({row.method for table in tables for row in table.rows})
    tasks = sum(len(table.tasks) for table in tables)
    return f"{pluralise(n_methods, 'method')} on {pluralise(tasks, 'task')} of {len(tables)} data sets."


def _task_name(table: TaskTable, task: str, has_several_data_sets: bool) -> str:
    name = format_task(task) or table.data_name or "runs"
    return f"{table.data_name} {name}" if has_several_data_sets and task else name


def _compare_methods(
    table: TaskTable,
    ranking: Ranking | None,
    start: int,
    line_styles: Mapping[str, LineStyle],
    id_prefix: str,
    multi_task: bool,
) -> DataSetComparison:
    """Compare the methods on one data set, whose first task has the number ``start``."""
    numbers = {task: start + n for n, task in enumerate(table.tasks)}
    table_methods = {row.method for row in table.rows}
    ordered = [name for name in line_styles if name in table_methods]
    coloured_styles = {name: line_styles[name] for name in ordered[:MAX_COLOURED_METHODS]}
    has_results = multi_task or any(row.published for row in table.rows)
    costs = {}
    for key in ("seconds", "memory"):
        caption = (
            f"{table.kind.score_name} against {key}: {pluralise(len(method_costs(table, key)), 'method')}"
        )
        if svg := draw_score_against_cost(table, key, line_styles, f"{id_prefix}{start}-{key}"):
            costs[key] = CaptionedFigure(caption, svg)
    return DataSetComparison(
        table=table,
        task_numbers=numbers,
        sentences=tuple(result_sentences(table)),
        notes=(*filter(None, [describe_missing_pairs(table)]), *table.notes),
        results=result_table(table) if has_results and table.rows else None,
        differences=difference_table(table),
        curves={
            numbers[task]: _draw_task(table, task, coloured_styles, f"{id_prefix}{numbers[task]}-curves")
            for task in (table.tasks if multi_task else ())
        },
        mean_curve=_draw_mean(table, coloured_styles, f"{id_prefix}mean")
        if multi_task and not start
        else None,
        coloured_styles=coloured_styles,
        grey_methods=tuple(ordered[MAX_COLOURED_METHODS:]),
        ranking=ranking,
        ranking_note=ranking_note(ranking) if len(table.rows) > 1 else "",
        ranks=draw_ranks(ranking, line_styles, f"{id_prefix}{start}-ranks") if ranking else "",
        costs=costs,
    )


def _draw_mean(
    table: TaskTable, coloured_styles: Mapping[str, LineStyle], svg_id: str
) -> CaptionedFigure | None:
    by_task = [[run for run in table.runs if task_name(run) == task] for task in table.tasks]
    svg = draw_mean_over_tasks(by_task, coloured_styles, svg_id) if by_task else ""
    data_name = f" of {table.data_name}" if table.data_name else ""
    caption = f"{table.kind.score_name} over {table.kind.labels_axis}, mean over the tasks{data_name}"
    return CaptionedFigure(caption[:1].upper() + caption[1:], svg) if svg else None


def _draw_task(
    table: TaskTable, task: str, coloured_styles: Mapping[str, LineStyle], svg_id: str
) -> CaptionedFigure:
    runs = [run for run in table.runs if task_name(run) == task]
    name = format_task(task) or table.data_name
    title = f"{table.kind.score_name} over {table.kind.labels_axis} on {name}, one line per method"
    counts = f"{pluralise(len(method_names(runs)), 'method')}, {pluralise(len(runs), 'run')}"
    return CaptionedFigure(f"{name}: {counts}", draw_task_curves(runs, coloured_styles, svg_id, title))
