"""Paired t-test between two methods on the same tasks and seeds."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import stdtr

Place = TypeVar("Place")  # task and seed


@dataclass(frozen=True)
class Paired:
    """Result of a paired t-test.

    Args:
        difference: mean difference, first method minus second.
        p: two-sided p-value; None if all differences are equal.
        pairs: number of pairs.
    """

    difference: float
    p: float | None
    pairs: int


def paired(ours: Mapping[Place, float], theirs: Mapping[Place, float]) -> Paired | None:
    """Compare two methods on their common keys; None with fewer than two pairs.

    >>> paired({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.8, 1: 0.6}).pairs
    2
    """
    differences = [value - theirs[key] for key, value in ours.items() if key in theirs]
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    # Differences that are equal up to rounding errors have no spread.
    if deviation <= 1e-12:
        return Paired(mean, None, len(differences))
    t = mean / (deviation / math.sqrt(len(differences)))
    return Paired(mean, float(2 * stdtr(len(differences) - 1, -abs(t))), len(differences))
