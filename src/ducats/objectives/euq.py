"""Objective of EUQ (Duan et al., WACV 2024): DUC's, with variances of the class probabilities."""

from typing import Literal

from torch import Tensor

from ducats.criteria import CRITERIA, aleatoric_variance, epistemic_variance
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.certainty import Certainty
from ducats.objectives.companion import Beside
from ducats.objectives.evidential import Calm, both_uncertainties, evidential

Uncertainty = Literal["variance", "entropy"]
USUAL = {"variance": 50.0, "entropy": 1.0}  # published weights of the epistemic uncertainty for Office-Home
DOUBT = {"variance": CRITERIA["epistemic_variance"].of, "entropy": CRITERIA["u_dis"].of}


def euq(
    model: Forward,
    batch: Batch,
    certainty: Certainty,  # noqa: ARG001 - its labels are in the batch
    *,
    uncertainty: Uncertainty = "variance",
    eu: float | None = None,
    au: float = 0.05,
    nll: float = 1.0,
    kl: float = 1.0,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Evidential loss on labelled and pseudo-labelled data; uncertainty minimisation on unlabelled data.

    Args:
        uncertainty: ``variance`` of the class probabilities, summed over the classes, or ``entropy`` as in
            DUC.
        eu: weight of the epistemic uncertainty of unlabelled target data; None: 50 for variance, 1 for
            entropy.
        au: weight of the aleatoric uncertainty of unlabelled target data.
        nll: weight of the evidential negative log-likelihood.
        kl: weight of the KL divergence of misleading evidence, which is divided by the number of classes.
        source: weight of the terms on the source.
        target: weight of the terms on labelled and pseudo-labelled target data.
    """
    _check(uncertainty)
    names = ("eu", "au") if uncertainty == "variance" else ("u_dis", "u_data")
    weights = dict(zip(names, (USUAL[uncertainty] if eu is None else eu, au), strict=True))
    calm = Calm(weights, _variances if uncertainty == "variance" else both_uncertainties)
    return evidential(model, batch, {"nll": nll, "kl": kl}, calm, source=source, target=target)


def sure_of_class(
    beside: Beside, *, uncertainty: Uncertainty = "variance", rate: float = 0.01, most: float = 0.5
) -> Certainty:
    """Build EUQ's auxiliary module: certainty sampling by the epistemic uncertainty.

    Args:
        uncertainty: as in the loss.
        rate: fraction of the pool that is pseudo-labelled before the first round, twice that before the
            second, and so on; 0 disables it.
        most: maximum fraction of the pool that is pseudo-labelled in total.
    """
    _check(uncertainty)
    return Certainty(beside, DOUBT[uncertainty], rate=rate, most=most)


def _check(uncertainty: str) -> None:
    if uncertainty not in DOUBT:
        raise ValueError(
            f"objective.params.uncertainty must be one of {', '.join(DOUBT)}, not {uncertainty!r}"
        )


def _variances(z: Tensor) -> dict[str, Tensor]:
    """Variances summed over the classes, ``(N, ...)``."""
    classes = z.shape[1]
    return {"eu": classes * epistemic_variance(z), "au": classes * aleatoric_variance(z)}
