"""Extrapolate the gain from the next batch of labels with a saturating curve fitted to the stages so far."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import stdtrit

from ducats.report.chapter.gain import NORMAL
from ducats.report.kinds import IMAGES
from ducats.report.read import Run, number

LEAST = 3  # stages needed to fit a curve
USELESS = 0.2  # a wider range is not reported
# Half-lives of the curve: labels that halve the remaining gain, as a multiple of the labels so far.
HALVES = np.geomspace(0.1, 10, 61)
LONGER = 2  # a last step with more than this many times the epochs of the others is mostly training


@dataclass(frozen=True)
class Outlook:
    """Estimated gain from the next batch, or the reason why there is no estimate.

    Args:
        batch: number of labels in the next batch; 0 if there is no estimate.
        guess: estimated gain, in [-1, 1].
        low: lower end of the 95% range.
        high: upper end of the 95% range.
        stages: number of stages the curve was fitted to.
        tail: epochs of the last step if it was left out, otherwise 0.
        why_not: the reason why there is no estimate; empty if there is one.
    """

    batch: int = 0
    guess: float = 0.0
    low: float = 0.0
    high: float = 0.0
    stages: int = 0
    tail: int = 0
    why_not: str = ""


def outlook(run: Run) -> Outlook:
    """Estimate the gain from another batch of the size of the last one.

    A curve ``a - b 2^(-labels / h)`` is fitted to the scores of the stages, with the highest weight on the
    latest. The range covers every ``h`` that is compatible with the scores, so it is wide if there are few
    stages or the scores scatter.
    """
    key = run.kind.headline
    stages = [stage for stage in run.stages if number(stage, key) is not None]
    if not stages or stages[-1]["labels"] == stages[0]["labels"]:
        return Outlook(why_not="no labels were acquired")
    labels = [float(stage["labels"]) for stage in stages]
    batch, tail = int(labels[-1] - labels[-2]), _tail([int(stage["epoch"]) for stage in stages])
    used = stages[:-1] if tail else stages
    if len(used) < LEAST:
        return Outlook(
            why_not=f"at least {LEAST} stages are needed{_but_the_last(tail)}, but there are {len(used)}"
        )
    scores = np.array([float(stage[key]) for stage in used])
    images = number(stages[-1], "images") or 0.0
    chance = math.sqrt(_variance(scores[-1], images)) if run.kind == IMAGES and images else 0.0
    guess, low, high = extrapolate(np.array(labels[: len(used)]), scores, labels[-1], batch, chance)
    most, least = 1.0 - float(stages[-1][key]), -float(stages[-1][key])
    guess, low, high = (min(max(value, least), most) for value in (guess, low, high))
    if high - low > USELESS:
        return Outlook(why_not="the gains of the batches so far vary too much")
    return Outlook(batch, guess, low, high, len(used), tail)


def extrapolate(
    labels: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    scores: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    spent: float,
    batch: float,
    chance: float,
) -> tuple[float, float, float]:
    """Fit the curve and return the estimated gain of ``batch`` labels after ``spent``, with its 95% range.

    Args:
        labels: label count of each stage, increasing.
        scores: score of each stage.
        spent: labels so far.
        batch: labels to add.
        chance: standard deviation of a score due to the finite test set; 0 if unknown.

    Returns:
        Best estimate, lower end and upper end of the range.
    """
    origin, span = labels[0], labels[-1] - labels[0]
    weights = 0.5 ** np.arange(len(labels))[::-1]  # the latest stage is closest to the extrapolation
    fits = []
    for half in HALVES * span:
        reached = 1 - 2 ** (-(labels - origin) / half)
        design = np.stack([np.ones_like(reached), reached], axis=1)
        solve = np.linalg.inv(design.T @ (weights[:, None] * design)) @ (design * weights[:, None]).T
        a_b = solve @ scores
        wrong = scores - design @ a_b
        ahead = float(2 ** (-(spent - origin) / half) - 2 ** (-(spent + batch - origin) / half))
        doubt = ahead * float(np.linalg.norm(solve[1]))  # of the gain, per unit deviation of each score
        fits.append(
            _Fit(float((weights * wrong**2).sum()), float((wrong**2).sum()), ahead * float(a_b[1]), doubt)
        )
    best = min(fits, key=lambda fit: fit.misfit)
    free = len(labels) - 2
    deviations = max(float(stdtrit(free, 0.975)) * math.sqrt(best.squares / free), NORMAL * chance)
    possible = [fit for fit in fits if fit.misfit <= best.misfit + deviations**2]
    low = min(fit.brings - deviations * fit.doubt for fit in possible)
    high = max(fit.brings + deviations * fit.doubt for fit in possible)
    return best.brings, low, high


@dataclass(frozen=True)
class _Fit:
    """A fitted curve: weighted and plain sums of squares, predicted gain and its sensitivity to noise."""

    misfit: float
    squares: float
    brings: float
    doubt: float


def _tail(epochs: list[int]) -> int:
    """Return the epochs of the last step if it is much longer than the others, otherwise 0."""
    steps = [later - sooner for sooner, later in pairwise(epochs)]
    return steps[-1] if len(steps) > 1 and steps[-1] > LONGER * max(steps[:-1]) else 0


def _but_the_last(tail: int) -> str:
    return f" before the last {tail} epochs, which reflect training more than labels" if tail else ""


def _variance(share: float, count: float) -> float:
    kept = (share * count + 1) / (count + 2)
    return kept * (1 - kept) / (count + 2)
