"""Ranks of methods over tasks and seeds, with the Nemenyi test."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report.across import CEILING, Table

ENOUGH = 10  # minimum number of comparisons for the Nemenyi test
LEVEL = 0.05  # significance level


@dataclass(frozen=True)
class Rank:
    """Rank of a method among the others.

    Args:
        mean: mean rank over all comparisons; 1 is best.
        middle: first and third quartile of its ranks.
        ends: its best and its worst rank.
    """

    method: str
    mean: float
    middle: tuple[float, float]
    ends: tuple[float, float]


@dataclass(frozen=True)
class Ranks:
    """Methods by mean rank, the best first.

    Args:
        comparisons: number of pairs of task and seed that all ranked methods have.
        left_out: methods with too few runs to be ranked.
        gap: critical difference of mean ranks (Nemenyi); None with too few comparisons.
    """

    ranks: tuple[Rank, ...]
    comparisons: int
    left_out: tuple[str, ...]
    gap: float | None


def rank_methods(table: Table) -> Ranks | None:
    """Rank the methods on each task and seed; None for fewer than three methods or two comparisons.

    Fully supervised methods are not ranked. A comparison needs runs of all ranked methods, so methods with
    less than half of the maximum number of runs are left out.
    """
    scores = {row.method: row.scores for row in table.rows if CEILING not in row.method and row.scores}
    most = max((len(found) for found in scores.values()), default=0)
    ranked = {method: found for method, found in scores.items() if 2 * len(found) >= most}
    places = [p for p in next(iter(ranked.values()), {}) if all(p in found for found in ranked.values())]
    if len(ranked) < 3 or len(places) < 2:
        return None
    each: dict[str, list[float]] = {method: [] for method in ranked}
    for place in places:
        for method, rank in places_of({method: found[place] for method, found in ranked.items()}).items():
            each[method].append(rank)
    ranks = sorted((_rank(method, found) for method, found in each.items()), key=lambda rank: rank.mean)
    left_out = tuple(method for method in scores if method not in ranked)
    gap = critical_gap(len(ranked), len(places)) if len(places) >= ENOUGH else None
    return Ranks(tuple(ranks), len(places), left_out, gap)


def places_of(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each method, 1 for the highest score; ties get their mean rank.

    >>> places_of({"a": 0.9, "b": 0.8, "c": 0.8})
    {'a': 1.0, 'b': 2.5, 'c': 2.5}
    """
    above = {name: sum(other > score for other in scores.values()) for name, score in scores.items()}
    level = {name: sum(other == score for other in scores.values()) for name, score in scores.items()}
    return {name: above[name] + (level[name] + 1) / 2 for name in scores}


def critical_gap(methods: int, comparisons: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at the 5 % level."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * comparisons))


def _rank(method: str, ranks: Sequence[float]) -> Rank:
    low, _, high = statistics.quantiles(ranks, n=4, method="inclusive")
    return Rank(method, statistics.fmean(ranks), (low, high), (min(ranks), max(ranks)))
