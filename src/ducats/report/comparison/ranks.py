"""Who is ahead of whom: ranks of methods over tasks and seeds, and which gaps between them may be luck."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ducats.report.across import CEILING, Table

ENOUGH = 10  # comparisons below which the test behind the gap is not to be trusted
LEVEL = 0.05  # how often a gap that wide would come up by luck


@dataclass(frozen=True)
class Rank:
    """Where a method stands among the others.

    Args:
        method: its name.
        mean: over all comparisons; 1 is ahead of everybody.
        middle: the ranks between which the middle half of the comparisons lies.
        ends: its best rank, and its worst.
    """

    method: str
    mean: float
    middle: tuple[float, float]
    ends: tuple[float, float]


@dataclass(frozen=True)
class Ranks:
    """Methods by their mean rank, the best first.

    Args:
        ranks: of those that can be compared.
        comparisons: pairs of task and seed in which every one of them was run.
        left_out: methods with too few runs to be ranked.
        gap: mean ranks closer than this may be luck (Nemenyi); none with too few comparisons.
    """

    ranks: tuple[Rank, ...]
    comparisons: int
    left_out: tuple[str, ...]
    gap: float | None


def rank_methods(table: Table) -> Ranks | None:
    """Rank the methods on each task and seed by what ranks; None if there is nothing to rank.

    What all labels give takes no part. A method with less than half of the most runs would leave hardly any
    comparison to the others, so it is left out.
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
    """The rank of each, 1 for the highest score; equals share the mean of their ranks.

    >>> places_of({"a": 0.9, "b": 0.8, "c": 0.8})
    {'a': 1.0, 'b': 2.5, 'c': 2.5}
    """
    above = {name: sum(other > score for other in scores.values()) for name, score in scores.items()}
    level = {name: sum(other == score for other in scores.values()) for name, score in scores.items()}
    return {name: above[name] + (level[name] + 1) / 2 for name in scores}


def critical_gap(methods: int, comparisons: int) -> float:
    """Nemenyi's critical difference of mean ranks, at a level of 5 %."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * comparisons))


def _rank(method: str, ranks: Sequence[float]) -> Rank:
    low, _, high = statistics.quantiles(ranks, n=4, method="inclusive")
    return Rank(method, statistics.fmean(ranks), (low, high), (min(ranks), max(ranks)))
