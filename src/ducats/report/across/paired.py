"""Whether one method is better than another on the same tasks and seeds: the paired t-test."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import stdtr

Place = TypeVar("Place")  # a task and a seed


@dataclass(frozen=True)
class Paired:
    """What two methods' runs on the same tasks and seeds say.

    Args:
        difference: mean of ours minus theirs.
        p: of a paired t-test, two-sided; None where there is no spread to measure it by.
        pairs: how many.
    """

    difference: float
    p: float | None
    pairs: int


def paired(ours: Mapping[Place, float], theirs: Mapping[Place, float]) -> Paired | None:
    """Compare what both have, pair by pair; None with fewer than two pairs.

    >>> paired({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.8, 1: 0.6}).pairs
    2
    """
    differences = [value - theirs[key] for key, value in ours.items() if key in theirs]
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    # Differences that are alike to the last bits have no spread but rounding.
    if deviation <= 1e-12:
        return Paired(mean, None, len(differences))
    t = mean / (deviation / math.sqrt(len(differences)))
    return Paired(mean, float(2 * stdtr(len(differences) - 1, -abs(t))), len(differences))
