"""Audit intervals against slow references and by enumeration of all samples of small populations."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from ducats.evaluation.audit import (
    Interval,
    accuracy_interval,
    class_accuracy_intervals,
    gain_interval,
    overconfidence,
    proportion_limits,
    stage_level,
)
from ducats.utils.npz_columns import AnyArray


def interval_of(
    correct: Sequence[bool] | AnyArray, confidence: AnyArray, pool: AnyArray, *, level: float, voids: int = 0
) -> Interval:
    """The interval of the accuracy, from the confidences of the whole pool."""
    return accuracy_interval(
        correct,
        confidence,
        pool_size=len(pool),
        pool_confidence=float(pool.mean()),
        level=level,
        voids=voids,
    )


def probability(x: int, n: int, successes: int, size: int) -> Fraction:
    if x > successes or n - x > size - successes:
        return Fraction(0)
    return Fraction(comb(successes, x) * comb(size - successes, n - x), comb(size, n))


def blaker_reference(x: int, n: int, size: int, error: Fraction) -> tuple[Fraction, Fraction]:
    """Extreme numbers of successes under which samples as extreme as x have a probability above the error."""
    accepted = []
    for successes in range(size + 1):
        pmf = [probability(k, n, successes, size) for k in range(n + 1)]
        depth = [min(sum(pmf[: k + 1], Fraction(0)), sum(pmf[k:], Fraction(0))) for k in range(n + 1)]
        if pmf[x] and sum(p for p, d in zip(pmf, depth, strict=True) if d <= depth[x]) > error:
            accepted.append(successes)
    return Fraction(accepted[0], size), Fraction(accepted[-1], size)


@pytest.mark.parametrize(("size", "n"), [(9, 4), (12, 12), (25, 7), (30, 19)])
@pytest.mark.parametrize("error", [Fraction(1, 20), Fraction(1, 120)])
def test_limits_are_those_of_exact_arithmetic(size: int, n: int, error: Fraction) -> None:
    for x in range(n + 1):
        expected = blaker_reference(x, n, size, error)
        assert proportion_limits(x, n, size, level=1 - float(error)) == tuple(map(float, expected))


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_accuracy_covers_in_every_population(level: float) -> None:
    for size in range(1, 19):
        for n in range(1, size + 1):
            limits = [proportion_limits(x, n, size, level=level) for x in range(n + 1)]
            for successes in range(size + 1):
                covered = sum(
                    probability(x, n, successes, size)
                    for x, (low, high) in enumerate(limits)
                    if low <= successes / size <= high
                )
                assert covered >= level - 1e-12


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_accuracy_covers_if_the_population_is_smaller_than_its_bound(level: float) -> None:
    for bound in (8, 13, 30):
        for n in range(1, bound + 1):
            limits = [proportion_limits(x, n, bound, level=level, size_known=False) for x in range(n + 1)]
            for size in range(n, bound + 1):
                for successes in range(size + 1):
                    covered = sum(
                        float(probability(x, n, successes, size))
                        for x, (low, high) in enumerate(limits)
                        if low <= successes / size <= high
                    )
                    assert covered >= level - 1e-9


def gain_coverage(gained: int, lost: int, size: int, n: int, table: dict[tuple[int, int], Interval]) -> float:
    covered = 0
    for b, c in itertools.product(range(min(gained, n) + 1), range(min(lost, n) + 1)):
        if b + c <= n and n - b - c <= size - gained - lost:
            interval = table[b, c]
            if interval.low <= (gained - lost) / size <= interval.high:
                covered += comb(gained, b) * comb(lost, c) * comb(size - gained - lost, n - b - c)
    return covered / comb(size, n)


def gain_table(bound: int, n: int, level: float, voids: int) -> dict[tuple[int, int], Interval]:
    table = {}
    for b in range(n + 1):
        for c in range(n + 1 - b):
            before, after = np.zeros(n, bool), np.zeros(n, bool)
            after[:b] = True
            before[b : b + c] = True
            table[b, c] = gain_interval(before, after, size=bound, level=level, size_known=not voids)
    return table


@pytest.mark.parametrize(("bound", "n"), [(6, 3), (9, 5), (12, 6), (10, 10)])
def test_gain_covers_in_every_population(bound: int, n: int) -> None:
    for level in (0.8, 0.95):
        for voids in (0, 1):
            table = gain_table(bound, n, level, voids)
            for size in range(n if voids else bound, bound + 1):
                for gained in range(size + 1):
                    for lost in range(size + 1 - gained):
                        assert gain_coverage(gained, lost, size, n, table) >= level - 1e-9


def test_estimate_is_unbiased_over_all_samples() -> None:
    correct = np.array([1, 1, 0, 1, 0, 1, 1], bool)
    confidence = np.array([0.9, 0.95, 0.3, 0.8, 0.5, 0.99, 0.4])
    estimates = [
        interval_of(correct[list(s)], confidence[list(s)], confidence, level=0.999999).estimate
        for s in itertools.permutations(range(7), 5)
    ]
    assert np.mean(estimates) == pytest.approx(correct.mean(), abs=1e-12)
    assert np.std(estimates) > 0


def test_informative_confidences_improve_the_estimate_and_useless_ones_hardly_harm() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.beta(2, 0.5, 2000)
    correct = rng.random(2000) < confidence
    useless = rng.permutation(confidence)
    errors = np.empty((400, 3))
    for row in errors:
        sample = rng.choice(2000, 40, replace=False)
        row[0] = correct[sample].mean()
        row[1] = interval_of(correct[sample], confidence[sample], confidence, level=0.99).estimate
        row[2] = interval_of(correct[sample], useless[sample], useless, level=0.99).estimate
    plain, informed, misled = np.sqrt(((errors - correct.mean()) ** 2).mean(0))
    assert informed < 0.95 * plain
    assert misled < 1.05 * plain


def test_large_populations_are_close_to_exact_and_never_narrower() -> None:
    from ducats.evaluation import audit

    for x, n in ((20, 20), (17, 20), (90, 100)):
        coarse = proportion_limits(x, n, 30_000, level=0.99)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(audit, "GRID", 30_000)
            exact = proportion_limits(x, n, 30_000, level=0.99)
        assert exact[0] - 0.0005 <= coarse[0] <= exact[0]
        assert exact[1] <= coarse[1] <= exact[1] + 0.0005


def test_higher_levels_are_wider() -> None:
    for x in (0, 7, 30):
        limits = [proportion_limits(x, 30, 400, level=level) for level in (0.8, 0.9, 0.99, 0.999)]
        gains = [
            gain_interval(np.arange(30) < x // 2, np.arange(30) < x, size=400, level=level)
            for level in (0.8, 0.9, 0.99, 0.999)
        ]
        for (low, high), (lower, higher) in itertools.pairwise(limits):
            assert lower <= low <= high <= higher
        for narrow, wide in itertools.pairwise(gains):
            assert wide.low <= narrow.low <= narrow.high <= wide.high


def test_more_labels_at_the_same_rate_are_narrower() -> None:
    widths = [np.ptp(proportion_limits(9 * k, 10 * k, 1000, level=0.99)) for k in (1, 2, 4, 8, 16, 32, 100)]
    assert all(later < earlier for earlier, later in itertools.pairwise(widths))
    assert widths[-1] == 0


@pytest.mark.parametrize("size", [1, 2, 5, 40, 50_000])
def test_edges_are_finite_and_inside(size: int) -> None:
    confidence = np.full(size, 0.7)
    for n in {0, 1, min(size, 5), min(size, 40)}:
        for share in (0, 0.5, 1):
            correct = np.arange(n) < share * n
            interval = interval_of(correct, confidence[:n], confidence, level=0.99)
            assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
            assert np.isfinite([interval.low, interval.estimate, interval.high]).all()
            gain = gain_interval(~correct, correct, size=size, level=0.99)
            assert -1 <= gain.low <= gain.estimate <= gain.high <= 1
            if n == size:
                assert interval.low == interval.high == correct.mean()
                assert gain.low == gain.high
    assert interval_of([], np.empty(0), confidence, level=0.9) == Interval(0.5, 0.0, 1.0)
    assert gain_interval([], [], size=size, level=0.9) == Interval(0.0, -1.0, 1.0)


def test_classes_use_their_own_labels() -> None:
    correct = [True, True, True, False, True, False]
    intervals = class_accuracy_intervals(
        correct, [0, 0, 0, 0, 2, 2], num_classes=3, pool_size=100, level=0.95, voids=1
    )
    assert [i.estimate for i in intervals] == [0.75, 0.5, 0.5]
    assert (intervals[1].low, intervals[1].high) == (0, 1)
    assert (intervals[0].low, intervals[0].high) == proportion_limits(3, 4, 97, level=0.95, size_known=False)


def test_voids_widen_the_interval() -> None:
    correct, confidence = np.arange(20) < 15, np.full(60, 0.5)
    without = interval_of(correct, confidence[:20], confidence[:57], level=0.95)
    with_voids = interval_of(correct, confidence[:20], confidence, level=0.95, voids=3)
    assert with_voids.low < without.low
    assert with_voids.high > without.high
    assert with_voids.estimate == 0.75


def test_overconfidence_mirrors_the_accuracy() -> None:
    result = overconfidence(Interval(0.8, 0.7, 0.9), 0.95)
    assert (result.estimate, result.low, result.high) == pytest.approx((0.15, 0.05, 0.25))


def test_stage_levels_spend_the_error() -> None:
    assert sum(1 - stage_level(s, 6) for s in range(6)) == pytest.approx(0.05)
    spent = [1 - stage_level(s, level=0.9) for s in range(1000)]
    assert 0.0999 < sum(spent) < 0.1
    with pytest.raises(ValueError, match="stage 6 of 6"):
        stage_level(6, 6)


def test_impossible_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="population of 3"):
        interval_of([True] * 4, np.ones(4), np.ones(3), level=0.95)
    with pytest.raises(ValueError, match="level"):
        proportion_limits(1, 2, 3, level=1.0)
    with pytest.raises(ValueError, match="2 and 3"):
        gain_interval([True] * 2, [True] * 3, size=9, level=0.95)
    with pytest.raises(ValueError, match="1 confidences"):
        interval_of([True] * 5, np.ones(1), np.ones(9), level=0.95)
