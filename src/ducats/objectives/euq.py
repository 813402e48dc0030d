"""Objective of EUQ (Duan et al., WACV 2024): DUC's, with variances of the class probabilities."""

from typing import Literal

from torch import Tensor

from ducats.acquisition.criteria import CRITERIA, aleatoric_variance, epistemic_variance
from ducats.objectives.auxiliary import AuxiliaryContext, AuxiliaryModule, ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.certainty_sampling import CertaintySampling
from ducats.objectives.evidential import UnlabelledTerms, dirichlet_uncertainties, evidential_losses
from ducats.objectives.label_propagation import with_label_propagation

UncertaintyKind = Literal["variance", "entropy"]
# Published weights of the epistemic uncertainty for Office-Home.
DEFAULT_EU_WEIGHTS = {"variance": 50.0, "entropy": 1.0}
EPISTEMIC_UNCERTAINTIES = {"variance": CRITERIA["epistemic_variance"].fn, "entropy": CRITERIA["u_dis"].fn}


def euq(
    model: ForwardFn,
    batch: Batch,
    auxiliary: AuxiliaryModule,  # noqa: ARG001 - its labels are in the batch
    *,
    uncertainty: UncertaintyKind = "variance",
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
    """
    _check_uncertainty(uncertainty)
    names = ("eu", "au") if uncertainty == "variance" else ("u_dis", "u_data")
    weights = dict(zip(names, (DEFAULT_EU_WEIGHTS[uncertainty] if eu is None else eu, au), strict=True))
    unlabelled_terms = UnlabelledTerms(
        weights, _variances if uncertainty == "variance" else dirichlet_uncertainties
    )
    return evidential_losses(
        model, batch, {"nll": nll, "kl": kl}, unlabelled_terms, source=source, target=target
    )


def certainty_by_epistemic(
    context: AuxiliaryContext,
    *,
    uncertainty: UncertaintyKind = "variance",
    certainty_rate: float = 0.01,
    max_fraction: float = 0.5,
) -> CertaintySampling:
    """Build EUQ's auxiliary module: certainty sampling by the epistemic uncertainty.

    A positive ``propagation_rate`` replaces it with label propagation.

    Args:
        uncertainty: as in the loss.
        certainty_rate: fraction of the pool that is pseudo-labelled before the first round, twice that before
            the second, and so on; 0 disables it.
        max_fraction: maximum fraction of the pool that is pseudo-labelled in total.
    """
    _check_uncertainty(uncertainty)
    return CertaintySampling(
        context, EPISTEMIC_UNCERTAINTIES[uncertainty], rate=certainty_rate, max_fraction=max_fraction
    )


def _check_uncertainty(uncertainty: str) -> None:
    if uncertainty not in EPISTEMIC_UNCERTAINTIES:
        raise ValueError(
            f"objective.params.uncertainty must be one of {', '.join(EPISTEMIC_UNCERTAINTIES)}, "
            f"not {uncertainty!r}"
        )


def _variances(z: Tensor) -> dict[str, Tensor]:
    """Variances summed over the classes, ``(N, ...)``."""
    classes = z.shape[1]
    return {"eu": classes * epistemic_variance(z), "au": classes * aleatoric_variance(z)}


EUQ_SPEC = ObjectiveSpec(euq, with_label_propagation(certainty_by_epistemic))
