"""Objectives: training losses.

An objective is a function from a model and a batch to named losses, which the training step sums. Each stream
has its own forward pass, so batch-norm statistics stay per domain. Within a step, the same images are
forwarded only once. Parameters are keyword-only. `ObjectiveSpec` declares what else an objective needs: an
auxiliary module that it trains or reads, or a strong view of the unlabelled images.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.adversarial import adversarial
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
from ducats.objectives.eada import RunningFreeEnergy, eada
from ducats.objectives.euq import certainty_by_epistemic, euq
from ducats.objectives.evidential import certainty_by_u_dis, duc
from ducats.objectives.mada import TargetAnchors, mada
from ducats.objectives.mme import LastLayerRef, mme
from ducats.objectives.probes import PROBES, Critic, Discriminator
from ducats.objectives.reduction import masked_means
from ducats.objectives.sdm import sdm
from ducats.objectives.self_training import (
    DensifyingTeacher,
    PrototypeTeacher,
    Teacher,
    TwoHeads,
    mrkld,
    proda,
    seg_uncertainty,
    tpld,
)
from ducats.objectives.softmax import softmax
from ducats.objectives.tqs import TqsProbes, tqs
from ducats.objectives.waal import waal

ObjectiveFn = Callable[..., Losses]

OBJECTIVES: Mapping[str, ObjectiveFn | ObjectiveSpec] = {
    "duc": ObjectiveSpec(duc, certainty_by_u_dis, strong_view_if=lambda params: bool(params.get("fixmatch"))),
    "euq": ObjectiveSpec(euq, certainty_by_epistemic),
    "softmax": softmax,
    "adversarial": ObjectiveSpec(adversarial, Discriminator),
    "waal": ObjectiveSpec(waal, Critic),
    "mme": ObjectiveSpec(mme, LastLayerRef),
    "eada": ObjectiveSpec(eada, RunningFreeEnergy),
    "tqs": ObjectiveSpec(tqs, TqsProbes, cuda_graph_safe=False),
    "sdm": sdm,
    "mada": ObjectiveSpec(mada, TargetAnchors),
    "mrkld": ObjectiveSpec(mrkld, Teacher),
    "seg_uncertainty": ObjectiveSpec(seg_uncertainty, TwoHeads),
    "tpld": ObjectiveSpec(tpld, DensifyingTeacher),
    "proda": ObjectiveSpec(proda, PrototypeTeacher),
}

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
    "softmax",
]
