"""Ranks of methods over tasks and seeds, with the Nemenyi test."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report.method_tables import FULLY_SUPERVISED, TaskTable

MIN_COMPARISONS = 10  # minimum number of comparisons for the Nemenyi test
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class MethodRank:
    """Rank of a method among the others.

    Args:
        mean: mean rank over all comparisons; 1 is best.
        quartiles: first and third quartile of its ranks.
        best_and_worst: its best and its worst rank.
    """

    method: str
    mean: float
    quartiles: tuple[float, float]
    best_and_worst: tuple[float, float]


@dataclass(frozen=True)
class Ranking:
    """Methods by mean rank, the best first.

    Args:
        n_comparisons: number of pairs of task and seed that all ranked methods have.
        left_out: methods with too few runs to be ranked.
        critical_difference: critical difference of mean ranks (Nemenyi); None with too few comparisons.
    """

    ranks: tuple[MethodRank, ...]
    n_comparisons: int
    left_out: tuple[str, ...]
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
    ranked = {
        method: method_scores
        for method, method_scores in scores.items()
        if 2 * len(method_scores) >= max_runs
    }
    shared_keys = [
        key
        for key in next(iter(ranked.values()), {})
        if all(key in method_scores for method_scores in ranked.values())
    ]
    if len(ranked) < 3 or len(shared_keys) < 2:
        return None
    ranks_by_method: dict[str, list[float]] = {method: [] for method in ranked}
    for shared_key in shared_keys:
        for method, rank in rank_scores(
            {method: method_scores[shared_key] for method, method_scores in ranked.items()}
        ).items():
            ranks_by_method[method].append(rank)
    ranks = sorted(
        (_rank(method, method_ranks) for method, method_ranks in ranks_by_method.items()),
        key=lambda rank: rank.mean,
    )
    left_out = tuple(method for method in scores if method not in ranked)
    critical_difference = (
        nemenyi_critical_difference(len(ranked), len(shared_keys))
        if len(shared_keys) >= MIN_COMPARISONS
        else None
    )
    return Ranking(tuple(ranks), len(shared_keys), left_out, critical_difference)


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
