"""Triage rule: an uncertainty threshold for accepting predictions, with a guaranteed error rate.

Accept the n most certain of N labelled images, of which k are wrong. The Clopper-Pearson bound limits the
error of all images below that threshold: with probability ``confidence`` it is at most the risk at which k or
fewer wrong ones of n occur with probability ``1 - confidence``. Trying all n and keeping the best is not
valid: among many bounds, some are too low by chance. The candidate n are therefore fixed before any label is
used and tested from the strictest on, and the first failure stops the search (fixed-sequence testing). If the
error does not decrease when less certain predictions are accepted, the guarantee holds for the last n that
passed.

The candidates do not depend on the risk either, except that a lower risk starts at a larger n. A rule for one
risk therefore implies a rule for every higher risk that accepts at least as many images. The guarantee is for
a risk chosen before the labels were seen.
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

from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

TriageCriterion = Literal["u_dis", "entropy", "probability"]
_SIZE_RATIO = 0.95  # of neighbouring candidate sizes; tried 0.7 to 0.98 in benchmarks/triage.py
_TYPICAL_RISK = 0.05  # with enough images to allow an error at this risk, the first step allows one


class AcceptedPredictions(NamedTuple):
    """The accepted, most certain predictions."""

    images: int
    wrong: int
    max_uncertainty: float  # uncertainty of the least certain accepted prediction


@dataclass(frozen=True)
class TriageRule:
    """Threshold for accepting predictions, and the data it was calibrated on."""

    criterion: TriageCriterion
    threshold: float
    risk: float  # maximum fraction of wrong predictions among the accepted
    confidence: float  # probability that the risk is not exceeded
    images: int  # number of labelled images
    accepted: int  # number of accepted images
    wrong: int  # number of accepted images with a wrong prediction
    error_bound: float  # upper bound of the error of accepted images at this confidence
    calibrated_on: str  # description of the labelled images
    warnings: tuple[str, ...]
    weights_sha256: str  # SHA-256 of the weights

    @property
    def coverage(self) -> float:
        """Fraction of accepted images."""
        return self.accepted / self.images

    def accepts(self, value: float) -> bool:
        """Whether to accept a prediction with this value of the criterion."""
        return value >= self.threshold if self.criterion == "probability" else value <= self.threshold

    def describe(self) -> str:
        """Describe the rule in one sentence."""
        side = "at least" if self.criterion == "probability" else "at most"
        return (
            f"accept {100 * self.coverage:.3g} % of images ({self.criterion} {side} {self.threshold:.6g}), "
            f"of which at most {100 * self.risk:.3g} % are wrong with {100 * self.confidence:.3g} % "
            "confidence; review the rest"
        )

    def save(self, folder: Path) -> Path:
        """Save the rule to a run folder."""
        content = {**asdict(self), "coverage": self.coverage, "description": self.describe()}
        path = RunFolder(folder).triage_path
        checksums.write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return path


def load_triage_rule(folder: Path) -> TriageRule | None:
    """Load the rule of a run folder, None if there is none; raise if it was computed for other weights."""
    path = RunFolder(folder).triage_path
    if not path.exists():
        return None
    checksums.verify(path)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: content[name] for name in TriageRule.__dataclass_fields__}
        rule = TriageRule(
            **{**fields, "warnings": tuple(fields["warnings"]), "threshold": float(fields["threshold"])}
        )
        if rule.criterion not in get_args(TriageCriterion):
            raise ValueError(rule.criterion)
    except (ValueError, KeyError, TypeError) as error:
        raise checksums.corrupt(path, type(error).__name__) from error
    if rule.weights_sha256 != hash_weights(folder):
        raise UserError(f"{path} was computed for other weights; run `ducats triage` again or delete it")
    return rule


def hash_weights(folder: Path) -> str:
    """Return the SHA-256 of a run's weights."""
    with RunFolder(folder).model_path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_acceptance_threshold(
    uncertainty: NDArray[Any], wrong: NDArray[Any], risk: float, confidence: float
) -> AcceptedPredictions | None:
    """Find the largest set of most certain predictions that meets the risk; None if there is none.

    Ties are accepted together.

    Args:
        uncertainty: ``(N,)``, higher is less certain.
        wrong: ``(N,)`` bool.

    >>> find_acceptance_threshold(np.arange(50.0), np.arange(50) >= 46, risk=0.05, confidence=0.9)
    AcceptedPredictions(images=45, wrong=0, max_uncertainty=44.0)
    """
    return _find_in_sorted(*_sort_by_uncertainty(uncertainty, wrong), risk, confidence)


def lowest_reachable_risk(uncertainty: NDArray[Any], wrong: NDArray[Any], confidence: float) -> float | None:
    """Return the lowest risk that some threshold reaches, in steps of 0.1 %; None if none below 1."""
    sorted_predictions = _sort_by_uncertainty(uncertainty, wrong)
    thousandths = 1 + bisect_left(
        range(1, 1000),
        True,
        key=lambda risk: _find_in_sorted(*sorted_predictions, risk / 1000, confidence) is not None,
    )
    return thousandths / 1000 if thousandths < 1000 else None


def _sort_by_uncertainty(uncertainty: NDArray[Any], wrong: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the sorted uncertainties and the cumulative number of wrong predictions."""
    order = np.argsort(uncertainty, kind="stable")
    return uncertainty[order], np.cumsum(wrong[order])


def _find_in_sorted(
    sorted_uncertainty: NDArray[Any], cumulative_errors: NDArray[Any], risk: float, confidence: float
) -> AcceptedPredictions | None:
    total = len(sorted_uncertainty)
    allowed = int(total >= min_images(_TYPICAL_RISK, confidence, n_errors=1))
    start = min(min_images(risk, confidence, allowed), total)
    thresholds = sorted_uncertainty[np.array(candidate_sizes(total), dtype=int) - 1]
    counts = np.unique(np.searchsorted(sorted_uncertainty, thresholds, side="right"))
    passed = None
    for index in range(int(np.searchsorted(counts, start)), len(counts)):
        count = int(counts[index])
        n_errors = int(cumulative_errors[count - 1])
        # Else a lower risk, which starts later, could pass with errors that stop a higher risk earlier.
        starts_with_errors = passed is None and index > 0 and n_errors > allowed
        if starts_with_errors or clopper_pearson_upper(count, n_errors, confidence) > risk:
            break
        passed = AcceptedPredictions(count, n_errors, float(sorted_uncertainty[count - 1]))
    return passed


def candidate_sizes(total: int) -> list[int]:
    """Return the numbers of accepted images to test; they depend neither on the labels nor on the risk.

    The search starts at the first that passes with one wrong image, or none if there are few images. If there
    are not enough images even for that, it tests only whether all can be accepted.

    >>> candidate_sizes(1000)[-4:]
    [857, 902, 950, 1000]
    """
    sizes, size = set(), float(total)
    while size >= 1:
        sizes.add(round(size))
        size *= _SIZE_RATIO
    return sorted(sizes)


def min_images(risk: float, confidence: float, n_errors: int = 0) -> int:
    """Return the number of images needed to show a risk if ``n_errors`` of them are wrong.

    >>> min_images(0.05, 0.9), min_images(0.05, 0.9, n_errors=2)
    (45, 105)
    """

    def probability(count: int) -> float:
        """Return the probability of at most ``n_errors`` wrong images if the error equals the risk."""
        terms = (comb(count, k) * risk**k * (1 - risk) ** (count - k) for k in range(n_errors + 1))
        return sum(terms)

    upper = n_errors + 1
    while probability(upper) > 1 - confidence:
        upper *= 2
    return bisect_left(range(upper), True, key=lambda n: n > n_errors and probability(n) <= 1 - confidence)


def clopper_pearson_upper(count: int, errors: int, confidence: float) -> float:
    """Return the Clopper-Pearson upper bound of an error rate with ``errors`` of ``count`` observed.

    >>> round(clopper_pearson_upper(45, 0, 0.9), 6) == round(1 - 0.1 ** (1 / 45), 6)
    True
    """
    from scipy.stats import beta

    return 1.0 if errors >= count else float(beta.ppf(confidence, errors + 1, count - errors))
