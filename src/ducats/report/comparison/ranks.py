"""Ranks of methods over tasks and seeds with the Nemenyi test, and the result in sentences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report.figures.summary_stats import MeanStd
from ducats.report.headline import MAIN_METHOD
from ducats.report.method_tables.build import FULLY_SUPERVISED, TaskTable, TaskTableRow, paired_t_test
from ducats.report.method_tables.text import format_p_value
from ducats.utils.findings import pluralise

MIN_COMPARISONS = 10  # minimum number of comparisons for the Nemenyi test
SIGNIFICANCE_LEVEL = 0.05
_RANDOM = "random"  # the best method is compared with it


@dataclass(frozen=True)
class MethodRank:
    """Ranks of a method over all comparisons, 1 is best: mean, first and third quartile, best and worst."""

    method: str
    mean: float
    quartiles: tuple[float, float]
    best_and_worst: tuple[float, float]


@dataclass(frozen=True)
class Ranking:
    """Methods by mean rank, the best first."""

    ranks: tuple[MethodRank, ...]
    n_comparisons: int  # number of pairs of task and seed that all ranked methods have
    left_out: tuple[str, ...]  # methods with too few runs to be ranked
    # Critical difference of mean ranks (Nemenyi); None with too few comparisons.
    critical_difference: float | None


def rank_methods(table: TaskTable) -> Ranking | None:
    """Rank the methods on each task and seed; None for fewer than three methods or two comparisons.

    Fully supervised methods are not ranked. A comparison needs runs of all ranked methods, so methods with
    less than half of the maximum number of runs are left out.
    """
    scores = {
        row.method: row.scores for row in table.rows if FULLY_SUPERVISED not in row.method and row.scores
    }
    max_runs = max((len(method_scores) for method_scores in scores.values()), default=0)
    ranked = {method: values for method, values in scores.items() if 2 * len(values) >= max_runs}
    first_keys = next(iter(ranked.values()), {})
    shared_keys = [key for key in first_keys if all(key in values for values in ranked.values())]
    if len(ranked) < 3 or len(shared_keys) < 2:
        return None
    rankings = [rank_scores({method: ranked[method][key] for method in ranked}) for key in shared_keys]
    ranks = [_rank(method, [ranking[method] for ranking in rankings]) for method in ranked]
    left_out = tuple(method for method in scores if method not in ranked)
    n_comparisons = len(shared_keys)
    is_testable = n_comparisons >= MIN_COMPARISONS
    critical_difference = nemenyi_critical_difference(len(ranked), n_comparisons) if is_testable else None
    best_first = tuple(sorted(ranks, key=lambda rank: rank.mean))
    return Ranking(best_first, n_comparisons, left_out, critical_difference)


def rank_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each method, 1 for the highest score; ties get their mean rank.

    >>> rank_scores({"a": 0.9, "b": 0.8, "c": 0.8})
    {'a': 1.0, 'b': 2.5, 'c': 2.5}
    """
    n_higher = {name: sum(other > score for other in scores.values()) for name, score in scores.items()}
    n_equal = {name: sum(other == score for other in scores.values()) for name, score in scores.items()}
    return {name: n_higher[name] + (n_equal[name] + 1) / 2 for name in scores}


def nemenyi_critical_difference(n_methods: int, n_comparisons: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at the 5 % level."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - SIGNIFICANCE_LEVEL, n_methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(n_methods * (n_methods + 1) / (6 * n_comparisons))


def _rank(method: str, ranks: Sequence[float]) -> MethodRank:
    low, _, high = statistics.quantiles(ranks, n=4, method="inclusive")
    return MethodRank(method, statistics.fmean(ranks), (low, high), (min(ranks), max(ranks)))


def best_method(table: TaskTable) -> str:
    """Return the method with the highest average; empty if no method has a run of every task."""
    ranked = _rows_by_average(table)
    return ranked[0][0].method if ranked else ""


def result_sentences(table: TaskTable) -> list[str]:
    """State the method with the highest average, its lead, how many tasks it wins, and the rank of DUC."""
    ranked = _rows_by_average(table)
    if not ranked:
        return ["No method has a finished run of every task, so averages cannot be compared."]
    (best, mean), *others = ranked
    score = table.kind.score_name
    has_several_tasks = len(table.tasks) > 1
    average_name = f"average {score} over {len(table.tasks)} tasks" if has_several_tasks else f"mean {score}"
    score_text = f"{100 * mean.mean:.1f}%"
    if mean.std is not None:
        score_text += f" ± {100 * mean.std:.1f}"
    article = "the highest" if others else "an" if has_several_tasks else "a"
    lead_text = f"{best.method} has {article} {average_name}: {score_text}"
    rivals = [row for row, _ in others[:1]]
    rivals += [row for row, _ in others[1:] if row.method == _RANDOM]
    result = [f"{lead_text}{''.join(f', {_difference_phrase(best, rival)}' for rival in rivals)}."]
    n_first = sum(best.method in _best_on_task(table, task) for task in table.tasks)
    if others and has_several_tasks:
        result.append(f"{best.method} is first on {n_first} of {len(table.tasks)} tasks.")
    for rank, (row, _) in enumerate(ranked[1:], start=2):
        if row.method == MAIN_METHOD:
            result.append(f"{MAIN_METHOD} ranks {rank} of {len(ranked)}, {_difference_phrase(row, best)}.")
    return result


def ranking_note(ranking: Ranking | None) -> str:
    """Describe the comparisons behind the ranks, and which differences are significant."""
    if ranking is None:
        return (
            "No ranking: it needs at least three methods with runs on the same two or more pairs of task and "
            "seed."
        )
    parts = [f"Ranks over {ranking.n_comparisons} comparisons, each on one task with one seed; 1 is best."]
    if ranking.critical_difference is None:
        parts.append(f"A significance test needs at least {MIN_COMPARISONS} comparisons.")
    else:
        indistinguishable = [
            rank.method
            for rank in ranking.ranks[1:]
            if rank.mean - ranking.ranks[0].mean < ranking.critical_difference
        ]
        count = f"{len(indistinguishable)} of the {len(ranking.ranks) - 1} other methods"
        subject = (
            f"{count} cannot be distinguished from"
            if indistinguishable
            else "all other methods differ significantly from"
        )
        parts.append(
            f"Differences of mean ranks below {ranking.critical_difference:.1f} are not significant (Nemenyi "
            f"test at 5%, which assumes independent comparisons): {subject} {ranking.ranks[0].method}."
        )
    if ranking.left_out:
        parts.append(f"Left out because of fewer runs: {', '.join(ranking.left_out)}.")
    return " ".join(parts)


def _rows_by_average(table: TaskTable) -> list[tuple[TaskTableRow, MeanStd]]:
    """Return the methods by average, the best first, without fully supervised ones."""
    if not table.measures:
        return []
    key = table.measures[0].key
    rows = [(row, row.averages.get(key)) for row in table.rows if FULLY_SUPERVISED not in row.method]
    rows_with_average = [(row, value) for row, value in rows if value is not None]
    return sorted(rows_with_average, key=lambda pair: -pair[1].mean)


def _best_on_task(table: TaskTable, task: str) -> set[str]:
    column = (task, table.measures[0].key)
    return table.best_methods({row.method: row.values[column] for row in table.rows if column in row.values})


def _difference_phrase(row: TaskTableRow, other: TaskTableRow) -> str:
    """Describe the paired difference between two methods."""
    test = paired_t_test(row.scores, other.scores)
    if test is None:
        return f"with too few pairs for a comparison with {other.method}"
    points = 100 * test.difference
    if abs(points) < 0.05:
        return f"level with {other.method}"
    phrase = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {other.method}"
    if test.p is None:
        return f"{phrase} ({pluralise(test.n_pairs, 'pair')})"
    p = format_p_value(test)
    significance = "" if test.p < SIGNIFICANCE_LEVEL else ", not significant"
    pairs = pluralise(test.n_pairs, "pair")
    return f"{phrase} (p {p if p.startswith('<') else f'= {p}'}, {pairs}{significance})"
