"""Extrapolate the gain from the next batch of labels with a saturating curve fitted to the stages so far."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.report.run_section.gain import NORMAL_QUANTILE_975, shrunk_proportion
from ducats.runfolder.records import finite_number
from ducats.utils.findings import pluralise

MIN_STAGES = 3  # stages needed to fit a curve
MAX_RANGE_WIDTH = 0.2  # a wider range is not reported
# Half-lives of the curve: labels that halve the remaining gain, as a multiple of the labels so far.
HALF_LIVES = np.geomspace(0.1, 10, 61)
# A last step with more than this many times the epochs of the others is mostly training.
MAX_LAST_STEP_RATIO = 2


@dataclass(frozen=True)
class GainForecast:
    """Estimated gain from the next batch, or the reason why it is missing."""

    n_labels: int = 0  # number of labels in the next batch; 0 without an estimate
    estimate: float = 0.0  # estimated gain, in [-1, 1], with the 95% range from `low` to `high`
    low: float = 0.0
    high: float = 0.0
    n_stages: int = 0  # number of stages the curve was fitted to
    excluded_epochs: int = 0  # epochs of the last step if it was left out, otherwise 0
    reason_missing: str = ""  # why the estimate is missing; empty if there is one


def forecast_gain(run: Run) -> GainForecast:
    """Estimate the gain from another batch of the size of the last one.

    A curve ``a - b 2^(-labels / h)`` is fitted to the scores of the stages, with the highest weight on the
    latest. The range covers every ``h`` that is compatible with the scores, so it is wide if there are few
    stages or the scores scatter.
    """
    key = run.kind.headline_metric
    stages = [stage for stage in run.stages if finite_number(stage, key) is not None]
    if not stages or stages[-1]["labels"] == stages[0]["labels"]:
        return GainForecast(reason_missing="no labels were acquired")
    labels = [float(stage["labels"]) for stage in stages]
    n_labels = int(labels[-1] - labels[-2])
    excluded_epochs = _long_last_step([int(stage["epoch"]) for stage in stages])
    used = stages[:-1] if excluded_epochs else stages
    if len(used) < MIN_STAGES:
        excluded = (
            f" before the last {pluralise(excluded_epochs, 'epoch')}, which reflect training more than labels"
        )
        needed = f"at least {MIN_STAGES} stages are needed{excluded if excluded_epochs else ''}"
        there = f"there is {len(used)}" if len(used) == 1 else f"there are {len(used)}"
        return GainForecast(reason_missing=f"{needed}, but {there}")
    scores = np.array([float(stage[key]) for stage in used])
    images = finite_number(stages[-1], "images") or 0.0
    score_deviation = (
        math.sqrt(shrunk_proportion(scores[-1], images)[1]) if run.kind == CLASSIFICATION and images else 0.0
    )
    estimate, low, high = extrapolate_gain(
        np.array(labels[: len(used)]), scores, labels[-1], n_labels, score_deviation
    )
    max_gain, min_gain = 1.0 - float(stages[-1][key]), -float(stages[-1][key])
    estimate, low, high = (min(max(value, min_gain), max_gain) for value in (estimate, low, high))
    if high - low > MAX_RANGE_WIDTH:
        return GainForecast(reason_missing="the gains of the batches so far vary too much")
    return GainForecast(n_labels, estimate, low, high, len(used), excluded_epochs)


def extrapolate_gain(
    labels: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    scores: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    labels_so_far: float,
    n_labels: float,
    score_deviation: float,
) -> tuple[float, float, float]:
    """Fit the curve and return the estimated gain from ``n_labels`` more labels, with its 95% range.

    Args:
        labels: of each stage, increasing.
        scores: of each stage.
        labels_so_far: before the addition; may exceed the last entry of ``labels``.
        score_deviation: standard deviation of a score due to the finite test set; 0 if unknown.

    Returns:
        Best estimate, lower end and upper end of the range.
    """
    origin, span = labels[0], labels[-1] - labels[0]
    weights = 0.5 ** np.arange(len(labels))[::-1]  # the latest stage is closest to the extrapolation
    fits = []
    for half_life in HALF_LIVES * span:
        saturation = 1 - 2 ** (-(labels - origin) / half_life)
        design = np.stack([np.ones_like(saturation), saturation], axis=1)
        solve = np.linalg.inv(design.T @ (weights[:, None] * design)) @ (design * weights[:, None]).T
        a_b = solve @ scores
        squares = (scores - design @ a_b) ** 2
        now, later = labels_so_far - origin, labels_so_far + n_labels - origin
        saturation_step = float(2 ** (-now / half_life) - 2 ** (-later / half_life))
        gain_deviation = saturation_step * float(np.linalg.norm(solve[1]))
        gain = saturation_step * float(a_b[1])
        fits.append(_Fit(float((weights * squares).sum()), float(squares.sum()), gain, gain_deviation))
    best = min(fits, key=lambda fit: fit.weighted_squares)
    degrees_of_freedom = len(labels) - 2
    deviations = max(
        float(stdtrit(degrees_of_freedom, 0.975)) * math.sqrt(best.squares / degrees_of_freedom),
        NORMAL_QUANTILE_975 * score_deviation,
    )
    compatible_fits = [fit for fit in fits if fit.weighted_squares <= best.weighted_squares + deviations**2]
    low = min(fit.gain - deviations * fit.gain_deviation for fit in compatible_fits)
    high = max(fit.gain + deviations * fit.gain_deviation for fit in compatible_fits)
    return best.gain, low, high


class _Fit(NamedTuple):
    """A fitted curve: weighted and plain sums of squares, predicted gain."""

    weighted_squares: float
    squares: float
    gain: float
    gain_deviation: float  # per unit deviation of each score


def _long_last_step(epochs: list[int]) -> int:
    """Return the epochs of the last step if it is much longer than the others, otherwise 0."""
    steps = [later - earlier for earlier, later in pairwise(epochs)]
    return steps[-1] if len(steps) > 1 and steps[-1] > MAX_LAST_STEP_RATIO * max(steps[:-1]) else 0
