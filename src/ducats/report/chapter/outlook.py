"""What the next batch of labels would likely bring: a curve that levels off, fitted to earlier ones."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import stdtrit

from ducats.report.chapter.gain import NORMAL
from ducats.report.kinds import IMAGES
from ducats.report.read import Run, number

LEAST = 3  # stages, for a curve with a bend
USELESS = 0.2  # a range that wide says nothing
# How soon the curve levels off: labels until half of what is left is gained, in spans of the labels so far.
HALVES = np.geomspace(0.1, 10, 61)
LONGER = 2  # a last step with so many times the epochs of the others is mostly training


@dataclass(frozen=True)
class Outlook:
    """A guess, or why there is none.

    Args:
        batch: labels of the next batch; 0 if nothing can be said.
        guess: what they would bring, a share.
        low: where the 95% range begins.
        high: where it ends.
        stages: from how many stages it was guessed.
        tail: epochs of training after the last labels that were left out; 0 if none were.
        why_not: why nothing can be said; empty if something can.
    """

    batch: int = 0
    guess: float = 0.0
    low: float = 0.0
    high: float = 0.0
    stages: int = 0
    tail: int = 0
    why_not: str = ""


def outlook(run: Run) -> Outlook:
    """Guess what as many labels as in the last batch would bring on top.

    A curve ``a - b 2^(-labels / h)`` is fitted to the scores of the stages, the newest weighing most. Every
    ``h`` that they do not rule out counts, so the range is wide where stages are few, or scatter.
    """
    key = run.kind.headline
    stages = [stage for stage in run.stages if number(stage, key) is not None]
    if not stages or stages[-1]["labels"] == stages[0]["labels"]:
        return Outlook(why_not="no labels were bought")
    labels = [float(stage["labels"]) for stage in stages]
    batch, tail = int(labels[-1] - labels[-2]), _tail([int(stage["epoch"]) for stage in stages])
    used = stages[:-1] if tail else stages
    if len(used) < LEAST:
        return Outlook(why_not=f"it takes {LEAST} stages{_but_the_last(tail)}, and there are {len(used)}")
    scores = np.array([float(stage[key]) for stage in used])
    images = number(stages[-1], "images") or 0.0
    chance = math.sqrt(_variance(scores[-1], images)) if run.kind == IMAGES and images else 0.0
    guess, low, high = extrapolate(np.array(labels[: len(used)]), scores, labels[-1], batch, chance)
    most, least = 1.0 - float(stages[-1][key]), -float(stages[-1][key])
    guess, low, high = (min(max(value, least), most) for value in (guess, low, high))
    if high - low > USELESS:
        return Outlook(why_not="what the batches so far brought scatters too much")
    return Outlook(batch, guess, low, high, len(used), tail)


def extrapolate(
    labels: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    scores: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    spent: float,
    batch: float,
    chance: float,
) -> tuple[float, float, float]:
    """Fit the curve and say what ``batch`` labels bring after ``spent``: the best guess, and a 95% range.

    Args:
        labels: of each stage, rising.
        scores: likewise.
        spent: labels so far.
        batch: labels to come.
        chance: a score's deviation by the luck of the test set alone; 0 if it is not known.
    """
    origin, span = labels[0], labels[-1] - labels[0]
    weights = 0.5 ** np.arange(len(labels))[::-1]  # the newest stage counts most: it is nearest to what comes
    fits = []
    for half in HALVES * span:
        reached = 1 - 2 ** (-(labels - origin) / half)
        design = np.stack([np.ones_like(reached), reached], axis=1)
        solve = np.linalg.inv(design.T @ (weights[:, None] * design)) @ (design * weights[:, None]).T
        a_b = solve @ scores
        wrong = scores - design @ a_b
        ahead = float(2 ** (-(spent - origin) / half) - 2 ** (-(spent + batch - origin) / half))
        doubt = ahead * float(np.linalg.norm(solve[1]))  # of what comes, for a deviation of 1 in every score
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
    """A curve: its weighted and plain sums of squares, what it promises, and how that follows a deviation."""

    misfit: float
    squares: float
    brings: float
    doubt: float


def _tail(epochs: list[int]) -> int:
    """Epochs of the last step where they are many more than before: then it shows training, not labels."""
    steps = [later - sooner for sooner, later in pairwise(epochs)]
    return steps[-1] if len(steps) > 1 and steps[-1] > LONGER * max(steps[:-1]) else 0


def _but_the_last(tail: int) -> str:
    return f" before the last {tail} epochs, which are training more than labels" if tail else ""


def _variance(share: float, count: float) -> float:
    kept = (share * count + 1) / (count + 2)
    return kept * (1 - kept) / (count + 2)
