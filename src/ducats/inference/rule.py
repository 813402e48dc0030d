"""Which predictions may go unseen: a threshold, and what it promises of those below.

Accept the n most certain of N labelled images, of which k are wrong. Clopper and Pearson bound the error of
all images below that threshold: with probability ``confidence`` it is at most the risk at which k or fewer of
n would be seen with probability ``1 - confidence``. One may not try all n and keep the best: among many
bounds some are too low by luck. So the n that are tried are fixed before any label is seen, they are tried
from the strictest on, and the first that fails ends it (fixed-sequence testing). As long as the error does
not fall when less certain predictions are accepted, the promise then holds for the last n that passed.
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
STEPS = 20  # thresholds that are tried, at most, after the first
SPARE = 1  # wrong ones that the first to be tried may hold: 0 is fragile, more needs many images


class Accepted(NamedTuple):
    """The most certain predictions of some labelled images."""

    images: int
    wrong: int
    last: float  # the uncertainty of the least certain of them


@dataclass(frozen=True)
class Rule:
    """Which predictions are accepted, and what is known of them."""

    by: By
    threshold: float
    risk: float  # share of the accepted that may be wrong
    confidence: float  # that it is no more
    images: int  # labelled ones that it was found on
    accepted: int  # of these
    wrong: int  # of the accepted
    bound: float  # of the error of the accepted, at this confidence
    on: str  # what these images are
    cautions: tuple[str, ...]
    model: str  # SHA-256 of the weights

    @property
    def coverage(self) -> float:
        """Share of images that is accepted."""
        return self.accepted / self.images

    def accepts(self, value: float) -> bool:
        """Whether a prediction with this u_dis, entropy or probability may go unseen."""
        return value >= self.threshold if self.by == "probability" else value <= self.threshold

    def in_words(self) -> str:
        """What it does and promises."""
        side = "at least" if self.by == "probability" else "at most"
        return (
            f"accept {100 * self.coverage:.3g} % of images ({self.by} {side} {self.threshold:.6g}), of which "
            f"at most {100 * self.risk:.3g} % are wrong with {100 * self.confidence:.3g} % confidence; the "
            "rest goes to people"
        )

    def save(self, folder: Path) -> Path:
        """Write it into a run's folder."""
        said = {**asdict(self), "coverage": self.coverage, "in_words": self.in_words()}
        path = folder / FILE
        write_text_atomically(path, json.dumps(said, indent=1, ensure_ascii=False) + "\n")
        return path


FILE = "triage.json"


def load_rule(folder: Path) -> Rule | None:
    """The rule of a run's folder, if there is one; refuse one that was found for other weights."""
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
            f"{path} was spoilt ({type(error).__name__}): remove it, and run `ducats triage` again"
        ) from error
    if rule.model != fingerprint(folder):
        raise UserError(f"{path} was found for other weights: run `ducats triage` again, or remove it")
    return rule


def fingerprint(folder: Path) -> str:
    """SHA-256 of a run's weights."""
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(uncertainty: NDArray[Any], wrong: NDArray[Any], risk: float, confidence: float) -> Accepted | None:
    """How many of the most certain may be accepted, ties included; None if not even those pass.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        wrong: ``(N,)`` bool, whether the prediction is.
        risk: share of the accepted that may be wrong.
        confidence: with which this shall hold.

    >>> find(np.arange(50.0), np.arange(50) >= 46, risk=0.05, confidence=0.9)
    Accepted(images=46, wrong=0, last=45.0)
    """
    return _find(*_sorted(uncertainty, wrong), risk, confidence)


def lowest_risk(uncertainty: NDArray[Any], wrong: NDArray[Any], confidence: float) -> float | None:
    """The lowest risk, in tenths of a percent, that some threshold would have reached; None: none below 1."""
    order, errors = _sorted(uncertainty, wrong)
    risks = (thousandths / 1000 for thousandths in range(1, 1000))
    return next((risk for risk in risks if _find(order, errors, risk, confidence) is not None), None)


def _sorted(uncertainty: NDArray[Any], wrong: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The uncertainties, rising, and how many up to each are wrong."""
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
    """How many are accepted at each threshold that is tried, fixed before any label is seen.

    The first is the fewest that pass with ``SPARE`` wrong ones among them, or with fewer where there are not
    so many images; without a wrong one, ``ln(1 - confidence) / ln(1 - risk)`` are needed.

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
    """How many must be seen to show a risk if ``spare`` of them are wrong.

    >>> fewest(0.05, 0.9), fewest(0.05, 0.9, spare=2)
    (45, 105)
    """

    def chance(count: int) -> float:
        """Of no more wrong ones than that, if the risk were just as high as it may be."""
        terms = (comb(count, k) * risk**k * (1 - risk) ** (count - k) for k in range(spare + 1))
        return sum(terms)

    most = spare + 1
    while chance(most) > 1 - confidence:
        most *= 2
    return bisect_left(range(most), True, key=lambda n: n > spare and chance(n) <= 1 - confidence)


def upper_bound(count: int, errors: int, confidence: float) -> float:
    """Clopper and Pearson's upper bound of a share of which ``errors`` of ``count`` were seen.

    >>> round(upper_bound(45, 0, 0.9), 6) == round(1 - 0.1 ** (1 / 45), 6)
    True
    """
    from scipy.stats import beta

    return 1.0 if errors >= count else float(beta.ppf(confidence, errors + 1, count - errors))
