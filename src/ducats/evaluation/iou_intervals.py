"""Intervals for the IoU of each class and their mean, from a random sample of labelled pixels.

The audit pixels are a simple random sample of the pixels that the model was not trained on. Among those whose
label or prediction is a class, the share with both is the IoU of the class. Given how many audit pixels are
among them, they are a simple random sample of them, so the exact limits of a proportion apply.

The limits of the mean come from two methods, each with half of the error; the narrower limit counts. The
first averages the limits of all classes, at a level at which these hold together. It assumes that all classes
are at their limits at once, which is pessimistic with many classes. The second bets on all classes together.

Betting: if the IoU of each class c is theta[c], the mean over the population of
x = 1 + sum_c bet[c] (hit[c] - theta[c] union[c]) is 1, where hit and union are 0 or 1 for each pixel. By
Maclaurin's inequality, the product of x over a sample without replacement has an expectation of at most 1, so
it reaches 1 / error with at most that probability (Markov). The limit is the smallest mean of all theta for
which it does not. The bets depend on the numbers of predicted pixels, not on the labels. Jensen's inequality
bounds the logarithm of x by a sum over classes, and Lagrange's dual bounds the minimum, both from below.

A class that the sample hardly shows makes the interval of the mean wide: nothing is known about its IoU. See
`ducats.evaluation.audit` for stages and voids.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ducats.evaluation.audit import Interval, proportion_limits
from ducats.utils.npz_columns import AnyArray

CELLS = 1000  # of the IoU, in which the limits of betting are searched
PRICES = np.geomspace(1e-4, 10, 100)  # Lagrange multipliers
PRIOR_PIXELS = 2.0  # audit pixels that the model's own expectation counts for in an estimate


@dataclass(frozen=True)
class PixelSample:
    """What is known about the pixels that a model was not trained on."""

    confusion: AnyArray  # (C, C), audit pixels by label and predicted class
    predicted: AnyArray  # (C,), pixels of the population by predicted class, with audit pixels and voids
    # (C,), sums over the population: of the predicted class's probability, and of each class's probability.
    confidence: AnyArray
    probability: AnyArray
    voids: int  # audit pixels to which no class applies
    known: AnyArray  # (C, C), further pixels, which all have a label

    @property
    def size(self) -> int:
        """Number of pixels of the population, with the voids."""
        return int(self.predicted.sum())

    @cached_property
    def hits(self) -> AnyArray:
        """Audit pixels of each class that are predicted correctly."""
        hits: AnyArray = np.diagonal(self.confusion)
        return hits

    @cached_property
    def unions(self) -> AnyArray:
        """Audit pixels whose label or prediction is the class."""
        return _unions(self.confusion)

    def union_sizes(self, c: int) -> tuple[int, int]:
        """Return bounds of the number of pixels of the population whose label or prediction is the class."""
        union = int(self.unions[c])
        smallest = union if self.voids else max(union, int(self.predicted[c]))
        return smallest, self.size - self.voids - (int(self.confusion.sum()) - union)

    def with_known(self, c: int, iou: AnyArray | float, size: float) -> AnyArray:
        """Return the IoU of a class with the known pixels, if its union in the population has this size."""
        hits, total = self.known[c, c], size + _unions(self.known)[c]
        return np.asarray((iou * size + hits) / total if total else iou)

    @cached_property
    def may_be_absent(self) -> AnyArray:
        """Whether a class may be neither label nor prediction of any pixel."""
        absent: AnyArray = (self.predicted == 0) & (self.unions == 0) & (_unions(self.known) == 0)
        return absent


def class_iou_intervals(sample: PixelSample, *, level: float) -> tuple[Interval, ...]:
    """IoU of each class. Each interval holds at `level`; those of several classes do not hold together.

    The estimates use what the model expects: the IoU that follows from its probabilities counts like two
    audit pixels. A class that the model never predicts has an IoU of 0, if it exists.
    """
    missed = sample.probability - sample.confidence
    expected_union = np.maximum(sample.predicted + missed, 1e-9)
    expected = sample.confidence / expected_union
    estimates = (sample.hits + PRIOR_PIXELS * expected) / (sample.unions + PRIOR_PIXELS)
    intervals = []
    for c, (hits, union) in enumerate(zip(sample.hits.tolist(), sample.unions.tolist(), strict=True)):
        low, high = 0.0, 0.0
        if sample.predicted[c]:
            largest = sample.union_sizes(c)[1]
            low, high = proportion_limits(hits, union, largest, level=level, size_known=False)
        low = float(min(sample.with_known(c, low, size) for size in sample.union_sizes(c)))
        high = float(max(sample.with_known(c, high, size) for size in sample.union_sizes(c)))
        estimate = float(sample.with_known(c, estimates[c], expected_union[c]))
        intervals.append(Interval(min(max(estimate, low), high), low, high))
    return tuple(intervals)


def mean_iou_interval(sample: PixelSample, *, level: float) -> Interval:
    """Mean IoU over the classes that occur as label or prediction of a pixel.

    A class that may be absent counts as 0 in the lower limit only.
    """
    n_classes, half = len(sample.predicted), (1 - level) / 2
    intervals = class_iou_intervals(sample, level=1 - half / n_classes)
    is_present = ~sample.may_be_absent
    present = [one for one, flag in zip(intervals, is_present.tolist(), strict=True) if flag]
    if not present:
        return Interval(0.0, 0.0, 1.0)
    low = max(sum(one.low for one in present), _betting_limit(sample, half / 2, lower=True)) / n_classes
    high = min(sum(one.high for one in present), _betting_limit(sample, half / 2, lower=False)) / len(present)
    estimate = sum(one.estimate for one in present) / len(present)
    return Interval(min(max(estimate, low), max(low, high)), low, max(low, high))


def _betting_limit(sample: PixelSample, error: float, *, lower: bool) -> float:
    """Return a limit of the sum of the IoU of all classes that occur, by betting on all of them together."""
    threshold, sign = -math.log(error), 1 if lower else -1
    bet = _bets(sample, threshold, 0.48 if lower else 0.9)
    ends = np.linspace(0, 1, CELLS + 1)
    # In each cell, the value and the wealth are bounded by those at the ends.
    value_at, theta = (ends[:-1], ends[1:]) if lower else (ends[1:], ends[:-1])
    wrong = sample.confusion + sample.confusion.T
    best = np.full(len(PRICES), -threshold) * PRICES
    for c in np.flatnonzero(~sample.may_be_absent).tolist():
        log_wealth = sample.hits[c] * np.log1p(sign * bet[c] * (1 - theta))
        for other in np.flatnonzero(wrong[c]).tolist():
            if other != c:
                both = bet[c] + bet[other]
                log_wealth += wrong[c, other] * bet[c] / both * np.log1p(-sign * both * theta)
        values = np.stack([sign * sample.with_known(c, value_at, size) for size in sample.union_sizes(c)])
        if not sample.predicted[c]:
            values = np.stack([sign * sample.with_known(c, 0.0, size) for size in sample.union_sizes(c)])
            best += values.min()
        else:
            best += (values.min(0) + PRICES[:, None] * log_wealth).min(1)
    return sign * float(best.max())


def _bets(sample: PixelSample, threshold: float, most: float) -> AnyArray:
    """Return bets that bring all limits about as far as their share of a limit of the mean is worth.

    A bet is in inverse proportion to the number of audit pixels that are expected for the class. Classes for
    which hardly any are expected do not count: their limits are 0 and 1 in any case.
    """
    n_audit = int(sample.confusion.sum()) + sample.voids
    expected = np.maximum(1.15 * n_audit * sample.predicted / max(sample.size, 1), 1e-3)
    counted = np.ones(len(expected), bool)
    while counted.any():
        scale = math.sqrt(2 * threshold / (0.12 / expected[counted]).sum())
        vacuous = counted & (0.12 * scale / expected > 0.7)
        if not vacuous.any():
            return np.where(counted, np.minimum(scale / expected, most), most)
        counted &= ~vacuous
    return np.full(len(expected), most)


def _unions(confusion: AnyArray) -> AnyArray:
    """Pixels whose label or prediction is the class."""
    unions: AnyArray = confusion.sum(0) + confusion.sum(1) - np.diagonal(confusion)
    return unions
