"""Summary statistics of figures and tables: means over seeds, pooled reliability bins."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation over seeds; the deviation of one seed is None."""

    mean: float
    std: float | None

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "MeanStd":
        """Compute mean and sample standard deviation (divisor ``n - 1``) of one or more values."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std)

    @classmethod
    def from_known(cls, values: Iterable[float | None]) -> "MeanStd | None":
        """Compute mean and deviation of the values that are not None; None if all are."""
        known = [value for value in values if value is not None]
        return cls.from_values(known) if known else None


@dataclass(frozen=True)
class ReliabilityBin:
    """Reliability bin: mean confidence, accuracy and number of its predictions."""

    confidence: float
    accuracy: float
    count: int


def pool_reliability_bins(stages: Sequence[Mapping[str, Any]]) -> list[ReliabilityBin]:
    """Pool the reliability bins of several seeds with equal weight per prediction; skip empty bins."""
    sums: dict[float, list[float]] = {}
    for bins in (stage["reliability"] for stage in stages if "reliability" in stage):
        for upper, count, confidence, accuracy in zip(
            bins["upper"], bins["count"], bins["confidence"], bins["accuracy"], strict=True
        ):
            if count and confidence is not None and accuracy is not None:
                total = sums.setdefault(upper, [0.0, 0.0, 0])
                for index, amount in enumerate((confidence * count, accuracy * count, count)):
                    total[index] += amount
    return [ReliabilityBin(c / n, a / n, int(n)) for _, (c, a, n) in sorted(sums.items())]
