"""Objectives: training losses.

An objective is a function from a model and a batch to named losses, which the training step sums. Each stream
has its own forward pass, so batch-norm statistics stay per domain. Within a step, the same images are
forwarded only once. Parameters are keyword-only; in each objective, ``source`` and ``target`` weight the
losses on labelled data of the source and the target. `ObjectiveSpec` declares what else an objective needs:
an auxiliary module that it trains or reads, or a strong view of the unlabelled images.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.adversarial import ADVERSARIAL_SPEC
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    CachedForward,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
    as_objective_spec,
)
from ducats.objectives.batch import Batch, LabelledImages, Losses, is_labelled
from ducats.objectives.eada import EADA_SPEC
from ducats.objectives.euq import EUQ_SPEC
from ducats.objectives.evidential import DUC_SPEC, duc
from ducats.objectives.mada import MADA_SPEC
from ducats.objectives.mme import MME_SPEC
from ducats.objectives.probes import PROBES
from ducats.objectives.reduction import masked_means
from ducats.objectives.ripu import RIPU_SPEC
from ducats.objectives.sdm import SDM_SPEC
from ducats.objectives.self_training import MRKLD_SPEC, PRODA_SPEC, SEG_UNCERTAINTY_SPEC, TPLD_SPEC
from ducats.objectives.softmax import SOFTMAX_SPEC, softmax
from ducats.objectives.tqs import TQS_SPEC
from ducats.objectives.waal import WAAL_SPEC
from ducats.utils.registry import resolve

ObjectiveFn = Callable[..., Losses]

OBJECTIVES: Mapping[str, ObjectiveSpec] = {
    "duc": DUC_SPEC,
    "euq": EUQ_SPEC,
    "softmax": SOFTMAX_SPEC,
    "adversarial": ADVERSARIAL_SPEC,
    "waal": WAAL_SPEC,
    "mme": MME_SPEC,
    "eada": EADA_SPEC,
    "tqs": TQS_SPEC,
    "sdm": SDM_SPEC,
    "ripu": RIPU_SPEC,
    "mada": MADA_SPEC,
    "mrkld": MRKLD_SPEC,
    "seg_uncertainty": SEG_UNCERTAINTY_SPEC,
    "tpld": TPLD_SPEC,
    "proda": PRODA_SPEC,
}


def resolve_objective(name: str) -> ObjectiveSpec:
    """Return an objective by its name in `OBJECTIVES`, or a user's own as ``package.module:attribute``."""
    return resolve("objective", OBJECTIVES, name, as_objective_spec)


__all__ = [
    "OBJECTIVES",
    "PROBES",
    "AuxiliaryContext",
    "AuxiliaryModule",
    "Batch",
    "CachedForward",
    "FullPass",
    "LabelledImages",
    "Losses",
    "ObjectiveFn",
    "ObjectiveSpec",
    "RefreshContext",
    "as_objective_spec",
    "duc",
    "is_labelled",
    "masked_means",
    "resolve_objective",
    "softmax",
]
