"""Intervals for the IoU: coverage by enumeration of all samples, a slow reference of betting, and bounds."""

import itertools
import math

import numpy as np
import pytest

from ducats.evaluation import iou_intervals
from ducats.evaluation.audit import proportion_limits
from ducats.evaluation.iou_intervals import PixelSample, class_iou_intervals, mean_iou_interval
from ducats.utils.npz_columns import AnyArray

VOID = -1


def confusion_of(label: AnyArray, predicted: AnyArray, classes: int) -> AnyArray:
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (label[label >= 0], predicted[label >= 0]), 1)
    return counts


def sample_of(
    label: AnyArray, predicted: AnyArray, drawn: AnyArray, known: AnyArray | None = None
) -> PixelSample:
    """What a run knows about a population of which some pixels are drawn; the model is certain of all."""
    classes = 3
    counts = np.bincount(predicted, minlength=classes)
    nothing = np.zeros((classes, classes), np.int64)
    return PixelSample(
        confusion_of(label[drawn], predicted[drawn], classes),
        counts,
        counts.astype(float),
        counts.astype(float),
        int((label[drawn] == VOID).sum()),
        nothing if known is None else known,
    )


def true_ious(confusion: AnyArray) -> list[float | None]:
    hits = np.diagonal(confusion)
    unions = confusion.sum(0) + confusion.sum(1) - hits
    return [float(h / u) if u else None for h, u in zip(hits, unions, strict=True)]


@pytest.mark.parametrize("has_void", [False, True])
@pytest.mark.parametrize("level", [0.6, 0.8])
def test_all_samples_of_small_populations_are_covered(
    monkeypatch: pytest.MonkeyPatch, level: float, has_void: bool
) -> None:
    monkeypatch.setattr(iou_intervals, "CELLS", 50)  # faster, and wider
    rng = np.random.default_rng(int(10 * level))
    for _ in range(3):
        predicted = rng.integers(0, 3, 8)
        label = np.where(rng.random(8) < 0.6, predicted, rng.integers(0, 3, 8))
        if has_void:
            label[rng.integers(0, 8, 2)] = VOID
        known = rng.integers(0, 3, (3, 3))
        ious = true_ious(confusion_of(label, predicted, 3) + known)
        mean = np.mean([iou for iou in ious if iou is not None])
        held = np.zeros(4)
        samples = list(itertools.combinations(range(8), 4))
        for drawn in samples:
            sample = sample_of(label, predicted, np.array(drawn), known)
            interval = mean_iou_interval(sample, level=level)
            of_classes = class_iou_intervals(sample, level=level)
            held += [interval.low - 1e-9 <= mean <= interval.high + 1e-9] + [
                iou is None or one.low - 1e-9 <= iou <= one.high + 1e-9
                for iou, one in zip(ious, of_classes, strict=True)
            ]
        assert (held / len(samples) >= level).all()


@pytest.mark.parametrize("lower", [True, False])
def test_betting_bounds_a_search_over_all_pairs(lower: bool) -> None:
    """The wealth of two classes, multiplied pixel by pixel, on a grid of both IoU; the dual leaves a gap."""
    confusion = np.array([[30, 4], [3, 20]])
    predicted = np.array([5900, 4100])
    sample = PixelSample(
        confusion, predicted, 0.9 * predicted, predicted * 1.0, 0, np.zeros((2, 2), np.int64)
    )
    error, grid, sign = 0.01, np.linspace(0, 1, 201), 1 if lower else -1
    bet = iou_intervals._bets(sample, -math.log(error), 0.48 if lower else 0.9)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    hits = (1 + sign * bet[0] * (1 - first)) ** 30 * (1 + sign * bet[1] * (1 - second)) ** 20
    wealth = hits * (1 - sign * (bet[0] * first + bet[1] * second)) ** 7
    total = (first + second)[wealth < 1 / error]
    reference = total.min() if lower else total.max()
    limit = iou_intervals._betting_limit(sample, error, lower=lower)
    assert 0 <= sign * (reference - limit) < 0.4


def test_betting_helps_with_many_classes() -> None:
    """For 19 equal classes, the limits of all classes at once are pessimistic."""
    classes, n = 19, 1900
    confusion = np.full((classes, classes), 0) + np.diag(np.full(classes, 95))
    confusion += np.roll(np.diag(np.full(classes, 5)), 1, 1)
    predicted = np.full(classes, 10**6)
    sample = PixelSample(confusion, predicted, 0.95 * predicted, predicted * 1.0, 0, 0 * confusion)
    interval = mean_iou_interval(sample, level=0.99)
    low, high = proportion_limits(95, 105, 19 * 10**6 - n + 105, level=1 - 0.01 / classes, size_known=False)
    assert interval.low < 95 / 105 < interval.high
    assert interval.high - interval.low < 0.8 * (high - low)


def test_the_estimate_of_an_unseen_class_is_what_the_model_expects() -> None:
    predicted, probability = np.array([900, 100]), np.array([880.0, 120.0])
    confidence = np.array([860.0, 80.0])
    nothing = np.zeros((2, 2), np.int64)
    sample = PixelSample(np.array([[10, 0], [0, 0]]), predicted, confidence, probability, 0, nothing)
    first, second = class_iou_intervals(sample, level=0.95)
    assert second.estimate == pytest.approx(80 / (100 + 40))
    assert (second.low, second.high) == (0, 1)
    assert first.estimate == pytest.approx((10 + 2 * 860 / 920) / 12)


def test_a_class_that_may_be_absent_counts_in_the_lower_limit_only() -> None:
    """All 40 pixels of a population are labelled; nobody knows a third class, which is never predicted."""
    confusion = np.diag([30, 10, 0])
    counts = np.array([30, 10, 0])
    sample = PixelSample(confusion, counts, counts * 1.0, counts * 1.0, 0, 0 * confusion)
    interval = mean_iou_interval(sample, level=0.95)
    assert interval.low == pytest.approx(2 / 3)
    assert (interval.estimate, interval.high) == (1, 1)


def test_limits_in_populations_of_billions() -> None:
    """There they are those of the binomial distribution, up to the width of a cell of the search."""
    billions = proportion_limits(90, 100, 6 * 10**9, level=0.95)
    assert billions == pytest.approx(proportion_limits(90, 100, 10**6, level=0.95), abs=3e-4)
