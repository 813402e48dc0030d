"""Intervals from audit labels: accuracy, class accuracy, overconfidence and gain, without a test set.

The pool without the images whose labels a model was trained on is a finite population, and the audit images
in it are a simple random sample without replacement. All intervals follow from that design alone: they are
exact for any model, any confidence and any number of labels. They do not depend on the order of the labels.

The audit images are the same at all stages of a run, and people may stop because of what they saw. For
intervals that hold at all stages together, pass `level=stage_level(stage, stages)`.

An audit image to which no class applies is void. Leave it out of the arrays and count it in `voids`. The
population are then the images to which a class applies. Their number is unknown but at most the size of the
pool minus `voids`, and a sample from a larger population varies more, so this bound is used for it.

There is no interval for the expected calibration error. With 20 labels its bins hold one or two labels each;
the estimate is biased upwards, and so are its bootstrap replicates. `overconfidence` is exact, and the
calibration error is at least its absolute value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nextafter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammainccinv, gammaln

_Array = NDArray[Any]
_Flags = Sequence[bool] | _Array
LEVEL = 0.95
GRID = 8192  # numbers of correct images in larger populations are tested in this many cells, conservatively
GAIN_CELLS = 48  # likewise numbers of gained images
LOSS_SHARE = 0.25  # Lancaster's weight of the second p-value of a gain; that of the first is 1
SHRINKAGE = 10.0  # audit images that the confidence's weight 0 counts for
SMALL = 100.0  # factorials of smaller numbers are not computed by Stirling's series
VOID_SHARE = 0.1  # of the error, for the number of voids, if there are any
ROUNDING = 1e-9  # relative error allowed for in probabilities, always in favour of a wider interval


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence limits, as fractions."""

    estimate: float
    low: float
    high: float


def stage_level(stage: int, stages: int | None = None, *, level: float = LEVEL) -> float:
    """Level of the intervals of one stage such that those of all stages hold together with `level`.

    Args:
        stage: counted from 0.
        stages: the number of stages with intervals. If it is not known in advance, stage s gets the share
            1 / ((s + 1) (s + 2)) of the error.
    """
    if stage < 0 or (stages is not None and stage >= stages):
        raise ValueError(f"stage {stage} of {stages}")
    share = 1 / stages if stages is not None else 1 / ((stage + 1) * (stage + 2))
    return 1 - (1 - level) * share


def accuracy_interval(
    correct: _Flags,
    confidence: _Array,
    *,
    pool_size: int,
    pool_confidence: float,
    level: float,
    voids: int = 0,
) -> Interval:
    """Accuracy over the images that a model was not trained on, from a random sample of them.

    The limits invert the exact test of Blaker (2000) for the hypergeometric distribution. The estimate is
    unbiased before it is clipped to the limits; it uses the confidences as in prediction-powered inference
    (Angelopoulos, Duchi and Zrnic 2023). With voids it is the mean of `correct`; without labels, 0.5.

    Args:
        correct: for each audit image of the population.
        confidence: of the same images.
        pool_size: number of images of the population, with the audit images and the voids.
        pool_confidence: mean over the population.
    """
    flags, size = _as_flags(correct), pool_size - voids
    low, high = proportion_limits(int(flags.sum()), len(flags), size, level=level, size_known=voids == 0)
    if not len(flags):
        return Interval(0.5, low, high)
    if voids:
        estimate = float(flags.mean())
    else:
        estimate = _powered_mean(flags, np.asarray(confidence, float), size, pool_confidence)
    return Interval(min(max(estimate, low), high), low, high)


def class_accuracy_intervals(
    correct: _Flags,
    label: Sequence[int] | _Array,
    *,
    num_classes: int,
    pool_size: int,
    level: float,
    voids: int = 0,
) -> tuple[Interval, ...]:
    """Accuracy among the images of each true class (recall).

    Each interval holds at `level`; those of several classes do not hold together. How many images of a class
    the pool has is unknown; it is bounded like the number of images that are not void.

    Args:
        label: true class of each audit image.
        pool_size: number of images of the population, with the audit images and the voids.
    """
    flags, classes = _as_flags(correct), np.asarray(label)
    intervals = []
    for index in range(num_classes):
        of_class = flags[classes == index]
        size = pool_size - voids - (len(flags) - len(of_class))
        low, high = proportion_limits(int(of_class.sum()), len(of_class), size, level=level, size_known=False)
        intervals.append(Interval(float(of_class.mean()) if len(of_class) else 0.5, low, high))
    return tuple(intervals)


def overconfidence(accuracy: Interval, mean_confidence: float) -> Interval:
    """Mean confidence minus accuracy. Holds whenever the interval of the accuracy does.

    With voids, the mean confidence is still that of all images.
    """
    return Interval(
        mean_confidence - accuracy.estimate,
        mean_confidence - accuracy.high,
        mean_confidence - accuracy.low,
    )


def gain_interval(
    correct_before: _Flags, correct_after: _Flags, *, size: int, level: float, size_known: bool = True
) -> Interval:
    """Gain in accuracy over an earlier model, on the images that the later one was not trained on.

    Both are judged on the same audit images. For each limit, the numbers of images gained and lost are tested
    by two exact hypergeometric p-values, the second given the count of the first. Lancaster's (1961) weighted
    combination rejects pairs of numbers; the limit is the extreme difference among the others.

    Args:
        size: number of images of the population, with the audit images and without voids.
        size_known: False: `size` is an upper bound; the limits are one image wider, unless the audit reaches
            it.
    """
    before, after = _as_flags(correct_before), _as_flags(correct_after)
    if len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} audit images")
    n = len(after)
    _check(0, n, size, level)
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    if not n:
        return Interval(0.0, -1.0, 1.0)
    margin = 0 if size_known or n == size else 1
    high = (_most_gained(gained, lost, n, size, (1 - level) / 2) + margin) / size
    low = -(_most_gained(lost, gained, n, size, (1 - level) / 2) + margin) / size
    return Interval((gained - lost) / n, max(low, -1.0), min(high, 1.0))


def proportion_limits(
    successes: int, n: int, size: int, *, level: float, size_known: bool = True
) -> tuple[float, float]:
    """Limits of Blaker (2000) for the proportion of successes in a finite population.

    Never wider than the finite version of Clopper and Pearson's (1934).

    Args:
        successes: in a simple random sample of `n` out of `size`.
        size_known: False: `size` is an upper bound; the limits are one image wider, unless `n` reaches it.
    """
    _check(successes, n, size, level)
    if n == 0:
        return 0.0, 1.0
    margin = 0 if size_known or n == size else 1
    low = _fewest_acceptable(successes, n, size, 1 - level)
    high = size - _fewest_acceptable(n - successes, n, size, 1 - level)
    return max(low - margin, 0) / size, min(high + margin, size) / size


def population_sizes(n_judged: int, n_void: int, n_images: int, *, level: float) -> tuple[int, ...]:
    """Return bounds of the number of images to which a class applies, which hold with `level`.

    If the audit found no void, all images count; the result is then a single number.
    """
    if not n_void:
        return (n_images,)
    share, _ = proportion_limits(n_judged, n_judged + n_void, n_images, level=level)
    return round(share * n_images), n_images - n_void


def split_level(level: float, n_void: int) -> tuple[float, float]:
    """Return levels for a figure and for the number of voids, such that both hold together with `level`."""
    error = 1 - level
    return (1 - (1 - VOID_SHARE) * error, 1 - VOID_SHARE * error) if n_void else (level, level)


def with_known(
    interval: Interval, sizes: Sequence[tuple[int, int]], known_sum: int, n_known: int
) -> Interval:
    """Combine the mean over a part of the sampled images with what is known, to the mean over all images.

    Args:
        interval: of the mean over the part; the values of the other sampled images, if any, are 0.
        sizes: bounds of the numbers of images in the part and of sampled images, in all combinations; the
            estimate uses the last.
        known_sum: sum over the images that are known.
        n_known: number of these.
    """

    def combine(value: float) -> list[float]:
        return [(part * value + known_sum) / (sampled + n_known) for part, sampled in sizes]

    estimates, lows, highs = map(combine, (interval.estimate, interval.low, interval.high))
    return Interval(estimates[-1], min(lows), max(highs))


def _check(successes: int, n: int, size: int, level: float) -> None:
    """Raise if there are more audit images than images, or for a level that is none."""
    if not 0 <= successes <= n <= size:
        raise ValueError(f"{successes} of {n} audit images, in a population of {size}")
    if not 0.5 <= level < 1:
        raise ValueError(f"level {level} is not in [0.5, 1)")


def _as_flags(values: _Flags) -> _Array:
    """Return a boolean array."""
    return np.asarray(values, dtype=bool).reshape(-1)


def _powered_mean(correct: _Array, confidence: _Array, size: int, pool_confidence: float) -> float:
    """Unbiased estimate of a population mean with a control variate (PPI++, Angelopoulos et al. 2023).

    The weight of the confidence is fitted on one half of the sample and used on the other, and vice versa.
    The other half is a simple random sample of the population without the first.
    """
    if len(confidence) != len(correct):
        raise ValueError(f"{len(correct)} audit images, {len(confidence)} confidences")
    y = correct.astype(float)
    if len(y) < 4 or len(y) == size:
        return float(y.mean())
    estimates = []
    for first in (0, 1):
        known, sample = slice(first, None, 2), slice(1 - first, None, 2)
        deviation = confidence[known] - confidence[known].mean()
        variance = float(deviation @ deviation)
        weight = float(np.clip(deviation @ y[known] / variance, 0, 1)) if variance > 0 else 0.0
        weight *= len(y[known]) / (len(y[known]) + SHRINKAGE)
        rest = size - len(y[known])
        rest_sum = weight * (size * pool_confidence - confidence[known].sum())
        rest_sum += rest * (y[sample] - weight * confidence[sample]).mean()
        estimates.append((y[known].sum() + rest_sum) / size)
    return float(np.mean(estimates))


def _pmf(x: _Array, n: int | _Array, successes: _Array, size: int | _Array) -> _Array:
    """Hypergeometric probability of `x` successes in a sample of `n`; arguments are broadcast."""
    failures = size - successes
    possible = (x <= successes) & (n - x <= failures)
    a, b = np.maximum(successes - x, 0), np.maximum(failures - n + x, 0)
    log_p = _log_falling(successes, a) + _log_falling(failures, b) - _log_falling(size, size - n)
    log_p = log_p + gammaln(n + 1.0) - gammaln(x + 1) - gammaln(n - x + 1)
    return np.where(possible, np.exp(np.minimum(log_p, 0)), 0.0)


def _log_falling(size: int | _Array, left: int | _Array) -> _Array:
    """Logarithm of size! / left!, by Stirling's series; exact also for populations of billions of pixels.

    The difference of two gammaln loses all digits there.
    """
    a, b = np.asarray(size, float) + 1, np.asarray(left, float) + 1
    k = np.maximum(a - b, 0)
    ratio = np.log1p(-k / a)  # log b - log a
    series = k * np.log(a) - (b - 0.5) * ratio - k
    series = series + (1 / a - 1 / b) / 12 - (a**-3.0 - b**-3.0) / 360
    return np.asarray(np.where(b < SMALL, gammaln(a) - gammaln(b), series))


def _upper_tail(x: int, n: int, successes: _Array, size: _Array) -> _Array:
    """Probability of at least `x` successes, from the shorter tail."""
    if x > n // 2:
        return np.asarray(_pmf(np.arange(x, n + 1)[:, None], n, successes, size).sum(0))
    return np.asarray(1 - _pmf(np.arange(x)[:, None], n, successes, size).sum(0) + 1e-13)


def _fewest(x: int, n: int, size: _Array, error: _Array) -> _Array:
    """Smallest numbers of successes in populations with P(at least x in the sample) > error."""
    low, high = np.full(size.shape, x), size - (n - x)
    while np.any(low < high):
        middle = (low + high) // 2
        kept = _upper_tail(x, n, middle, size) > error * (1 - ROUNDING)
        low, high = np.where(kept, low, middle + 1), np.where(kept, middle, high)
    return low


def _fewest_acceptable(x: int, n: int, size: int, error: float) -> int:
    """Smallest number of successes in the population that Blaker's test does not reject.

    Its p-value is the upper tail plus the largest lower tail that is not larger. It is not monotone, so all
    numbers are tested, from the limit of Clopper and Pearson upwards, where it is at most twice the tail.
    In large populations, the p-value is bounded from above over cells of neighbouring numbers.
    """
    start = int(_fewest(x, n, np.array([size]), np.array([error / 2]))[0])
    step, last = ceil(size / GRID), size - (n - x)
    counts = np.arange(n + 1)[:, None]
    for block in range(start, last + 1, 64 * step):
        bottom = np.arange(block, min(block + 64 * step, last + 1), step)
        top = np.minimum(bottom + step - 1, last)
        pmf = _pmf(counts, n, top, size)
        cdf = pmf.cumsum(0)
        tail = pmf[x:].sum(0) * (1 + ROUNDING)
        opposite = (cdf[:x] <= tail * (1 + ROUNDING)).sum(0) - 1  # index of the largest lower tail, -1: none
        lower = cdf if step == 1 else _pmf(counts, n, bottom, size).cumsum(0)
        lower_tail = np.where(opposite >= 0, lower[np.maximum(opposite, 0), np.arange(len(top))], 0.0)
        accepted = np.flatnonzero(tail + np.minimum(lower_tail, tail) > error * (1 - ROUNDING))
        if len(accepted):
            return int(bottom[accepted[0]])
    return last


def _most_gained(gained: int, lost: int, n: int, size: int, error: float) -> int:
    """Largest difference between images gained and lost in the population that is not rejected.

    Numbers of gained images are tested in cells: at the lower end of a cell, P(at most `gained`) is largest;
    at its upper end, fewest images are left and the number lost can be smallest.
    """
    threshold = float(gammainccinv(1 + LOSS_SHARE, error))  # of -log p of the first plus the second's score
    one = np.array([size])
    top = size - int(_fewest(n - gained, n, one, np.array([float(np.exp(-threshold))]))[0])
    edges = np.unique(np.linspace(gained, top + 1, min(GAIN_CELLS, top - gained + 1) + 1).astype(int))
    bottom, end = edges[:-1], edges[1:] - 1
    p_gained = np.clip(_upper_tail(n - gained, n, size - bottom, one), nextafter(0, 1), 1)
    score = -np.log(p_gained)
    kept = score < threshold
    limit = gammaincc(LOSS_SHARE, threshold - score[kept])
    fewest_lost = _fewest(lost, n - gained, size - end[kept], limit)
    return int((end[kept] - fewest_lost).max())
