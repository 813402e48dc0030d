"""Numbers that figures and tables share: finite ones, means over seeds, pooled reliability."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its sample standard deviation; one seed has no deviation."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Mean and sample standard deviation (dividing by ``n - 1``) of at least one value."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


@dataclass(frozen=True)
class Bin:
    """Predictions of like confidence: how sure they were, how often right, and how many."""

    confidence: float
    accuracy: float
    count: int


def number(record: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or none where the run had none (a loss that diverged, a class nobody saw)."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def reliability(stages: Sequence[Mapping[str, Any]]) -> list[Bin]:
    """Pool the reliability bins of stages of several seeds, weighing each prediction alike; no empty bins."""
    sums: dict[float, list[float]] = {}
    for table in (stage["reliability"] for stage in stages if "reliability" in stage):
        for upper, count, confidence, accuracy in zip(
            table["upper"], table["count"], table["confidence"], table["accuracy"], strict=True
        ):
            if count and confidence is not None and accuracy is not None:
                total = sums.setdefault(upper, [0.0, 0.0, 0])
                for place, amount in enumerate((confidence * count, accuracy * count, count)):
                    total[place] += amount
    return [Bin(c / n, a / n, int(n)) for _, (c, a, n) in sorted(sums.items())]
