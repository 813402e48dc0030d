"""Paired t-test between two methods on the same tasks and seeds."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import stdtr

_Key = TypeVar("_Key")  # task and seed


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired t-test.

    Args:
        difference: mean difference, first method minus second.
        p: two-sided p-value; None if all differences are equal.
        n_pairs: number of pairs.
    """

    difference: float
    p: float | None
    n_pairs: int


def paired_t_test(first: Mapping[_Key, float], second: Mapping[_Key, float]) -> PairedTest | None:
    """Compare two methods on their common keys; None with fewer than two pairs.

    >>> paired_t_test({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.8, 1: 0.6}).n_pairs
    2
    """
    differences = [value - second[key] for key, value in first.items() if key in second]
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    # Differences that are equal up to rounding errors have no spread.
    if deviation <= 1e-12:
        return PairedTest(mean, None, len(differences))
    t = mean / (deviation / math.sqrt(len(differences)))
    return PairedTest(mean, float(2 * stdtr(len(differences) - 1, -abs(t))), len(differences))
