"""Triage rule: an uncertainty threshold for accepting predictions, with a guaranteed error rate.

Accept the n most certain of N labelled images, of which k are wrong. The Clopper-Pearson bound limits the
error of all images below that threshold: with probability ``confidence`` it is at most the risk at which k or
fewer wrong ones of n occur with probability ``1 - confidence``. Trying all n and keeping the best is not
valid: among many bounds, some are too low by chance. The candidate n are therefore fixed before any label is
used and tested from the strictest on, and the first failure stops the search (fixed-sequence testing). If the
error does not decrease when less certain predictions are accepted, the guarantee holds for the last n that
passed.
"""

import hashlib
import json
from bisect import bisect_left
from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ducats.errors import UserError
from ducats.files import write_text_atomically

By = Literal["u_dis", "entropy", "probability"]
STEPS = 20  # maximum number of thresholds tested after the first
SPARE = 1  # wrong images allowed at the first threshold: 0 is fragile, more needs many images


class Accepted(NamedTuple):
    """The accepted, most certain predictions."""

    images: int
    wrong: int
    last: float  # uncertainty of the least certain accepted prediction


@dataclass(frozen=True)
class Rule:
    """Threshold for accepting predictions, and the data it was calibrated on."""

    by: By
    threshold: float
    risk: float  # maximum fraction of wrong predictions among the accepted
    confidence: float  # probability that the risk is not exceeded
    images: int  # number of labelled images
    accepted: int  # number of accepted images
    wrong: int  # number of accepted images with a wrong prediction
    bound: float  # upper bound of the error of accepted images at this confidence
    on: str  # description of the labelled images
    cautions: tuple[str, ...]
    model: str  # SHA-256 of the weights

    @property
    def coverage(self) -> float:
        """Fraction of accepted images."""
        return self.accepted / self.images

    def accepts(self, value: float) -> bool:
        """Whether to accept a prediction with this value of the criterion."""
        return value >= self.threshold if self.by == "probability" else value <= self.threshold

    def in_words(self) -> str:
        """Describe the rule in one sentence."""
        side = "at least" if self.by == "probability" else "at most"
        return (
            f"accept {100 * self.coverage:.3g} % of images ({self.by} {side} {self.threshold:.6g}), of which "
            f"at most {100 * self.risk:.3g} % are wrong with {100 * self.confidence:.3g} % confidence; "
            "review the rest"
        )

    def save(self, folder: Path) -> Path:
        """Save the rule to a run folder."""
        said = {**asdict(self), "coverage": self.coverage, "in_words": self.in_words()}
        path = folder / FILE
        write_text_atomically(path, json.dumps(said, indent=1, ensure_ascii=False) + "\n")
        return path


FILE = "triage.json"


def load_rule(folder: Path) -> Rule | None:
    """Load the rule of a run folder, None if there is none; raise if it was computed for other weights."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {name: said[name] for name in Rule.__dataclass_fields__}
        rule = Rule(**{**known, "cautions": tuple(known["cautions"]), "threshold": float(known["threshold"])})
        if rule.by not in get_args(By):
            raise ValueError(rule.by)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is corrupt ({type(error).__name__}); delete it and run `ducats triage` again"
        ) from error
    if rule.model != fingerprint(folder):
        raise UserError(f"{path} was computed for other weights; run `ducats triage` again or delete it")
    return rule


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of a run's weights."""
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(uncertainty: NDArray[Any], wrong: NDArray[Any], risk: float, confidence: float) -> Accepted | None:
    """Find the largest set of most certain predictions that meets the risk; None if there is none.

    Ties are accepted together.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        wrong: ``(N,)`` bool.

    >>> find(np.arange(50.0), np.arange(50) >= 46, risk=0.05, confidence=0.9)
    Accepted(images=46, wrong=0, last=45.0)
    """
    return _find(*_sorted(uncertainty, wrong), risk, confidence)


def lowest_risk(uncertainty: NDArray[Any], wrong: NDArray[Any], confidence: float) -> float | None:
    """Return the lowest risk that some threshold reaches, in steps of 0.1 %; None if none below 1."""
    order, errors = _sorted(uncertainty, wrong)
    risks = (thousandths / 1000 for thousandths in range(1, 1000))
    return next((risk for risk in risks if _find(order, errors, risk, confidence) is not None), None)


def _sorted(uncertainty: NDArray[Any], wrong: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sorted uncertainties and the cumulative number of wrong predictions."""
    places = np.argsort(uncertainty, kind="stable")
    return uncertainty[places], np.cumsum(wrong[places])


def _find(order: NDArray[Any], errors: NDArray[Any], risk: float, confidence: float) -> Accepted | None:
    passed = None
    for size in sizes_tried(len(order), risk, confidence):
        count = int(np.searchsorted(order, order[size - 1], side="right"))
        seen = int(errors[count - 1])
        if upper_bound(count, seen, confidence) > risk:
            break
        passed = Accepted(count, seen, float(order[size - 1]))
    return passed


def sizes_tried(count: int, risk: float, confidence: float) -> list[int]:
    """Return the numbers of accepted images to test; they do not depend on the labels.

    The first is the smallest number that passes with ``SPARE`` wrong images, or with fewer if there are not
    enough images. Without wrong images, ``ln(1 - confidence) / ln(1 - risk)`` are needed.

    >>> sizes_tried(60, risk=0.05, confidence=0.9)
    [45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60]
    >>> sizes_tried(44, risk=0.05, confidence=0.9)
    []
    """
    for spare in range(SPARE, -1, -1):
        first = fewest(risk, confidence, spare)
        if first <= count:
            return sorted({round(size) for size in np.linspace(first, count, STEPS + 1)})
    return []


def fewest(risk: float, confidence: float, spare: int = 0) -> int:
    """Return the number of images needed to show a risk if ``spare`` of them are wrong.

    >>> fewest(0.05, 0.9), fewest(0.05, 0.9, spare=2)
    (45, 105)
    """

    def chance(count: int) -> float:
        """Return the probability of at most ``spare`` wrong images if the error equals the risk."""
        terms = (comb(count, k) * risk**k * (1 - risk) ** (count - k) for k in range(spare + 1))
        return sum(terms)

    most = spare + 1
    while chance(most) > 1 - confidence:
        most *= 2
    return bisect_left(range(most), True, key=lambda n: n > spare and chance(n) <= 1 - confidence)


def upper_bound(count: int, errors: int, confidence: float) -> float:
    """Return the Clopper-Pearson upper bound of an error rate with ``errors`` of ``count`` observed.

    >>> round(upper_bound(45, 0, 0.9), 6) == round(1 - 0.1 ** (1 / 45), 6)
    True
    """
    from scipy.stats import beta

    return 1.0 if errors >= count else float(beta.ppf(confidence, errors + 1, count - errors))
