"""Intervals for the IoU of each class and their mean, from a random sample of labelled pixels.

The audit pixels are a simple random sample of the pixels that the model was not taught. Among those whose
label or prediction is a class, the share with both is the IoU of the class. Given how many audit pixels are
among them, they are a simple random sample of them, so the exact limits of a proportion apply.

The limits of the mean are the means of the limits of all classes, at a level at which these hold together. A
class that the sample hardly shows makes it wide: nothing is known about its IoU. See
`ducats.evaluation.audit` for stages and voids.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ducats.evaluation.audit import Interval, proportion_limits
from ducats.utils.npz_columns import AnyArray

PRIOR_PIXELS = 2.0  # audit pixels that the model's own expectation counts for in an estimate


@dataclass(frozen=True)
class PixelSample:
    """What is known about the pixels that a model was not taught."""

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
    known_unions, intervals = _unions(sample.known), []
    for c, (hits, union) in enumerate(zip(sample.hits.tolist(), sample.unions.tolist(), strict=True)):
        others = sample.voids + int(sample.confusion.sum()) - union
        largest = sample.size - others
        smallest = union if sample.voids else max(union, int(sample.predicted[c]))
        low, high = 0.0, 0.0
        if sample.predicted[c]:
            low, high = proportion_limits(hits, union, largest, level=level, size_known=False)
        known = int(sample.known[c, c]), int(known_unions[c])
        low = min(_with_known(low, size, *known) for size in (smallest, largest))
        high = max(_with_known(high, size, *known) for size in (smallest, largest))
        estimate = _with_known(float(estimates[c]), float(expected_union[c]), *known)
        intervals.append(Interval(min(max(estimate, low), high), low, high))
    return tuple(intervals)


def mean_iou_interval(sample: PixelSample, *, level: float) -> Interval:
    """Mean IoU over the classes that occur as label or prediction of a pixel.

    A class that may be absent counts as 0 in the lower limit only.
    """
    n_classes = len(sample.predicted)
    intervals = class_iou_intervals(sample, level=1 - (1 - level) / n_classes)
    present = [one for one, absent in zip(intervals, sample.may_be_absent, strict=True) if not absent]
    if not present:
        return Interval(0.0, 0.0, 1.0)
    low = sum(one.low for one in present) / n_classes
    high = sum(one.high for one in present) / len(present)
    return Interval(sum(one.estimate for one in present) / len(present), low, high)


def _unions(confusion: AnyArray) -> AnyArray:
    """Pixels whose label or prediction is the class."""
    unions: AnyArray = confusion.sum(0) + confusion.sum(1) - np.diagonal(confusion)
    return unions


def _with_known(iou: float, size: float, known_hits: int, known_union: int) -> float:
    """Combine the IoU of a part, whose union has `size` pixels, with pixels that are known."""
    total = size + known_union
    return (iou * size + known_hits) / total if total else iou
