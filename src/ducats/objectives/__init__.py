"""Objectives: training losses.

An objective is a function from a model and a batch to named losses, which the training step sums. Each stream
has its own forward pass, so batch-norm statistics stay per domain. Within a step, the same images are
forwarded only once. Parameters are keyword-only. `Training` declares what else an objective needs: an
auxiliary module that it trains or reads, or a strong view of the unlabelled images.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.adversarial import adversarial
from ducats.objectives.batch import Batch, Labelled, Losses, known
from ducats.objectives.companion import Beside, Companion, Look, Moment, Remembered, Training, as_training
from ducats.objectives.eada import Level, eada
from ducats.objectives.euq import euq, sure_of_class
from ducats.objectives.evidential import duc, sure_of_evidence
from ducats.objectives.mada import TargetAnchors, mada
from ducats.objectives.means import means
from ducats.objectives.mme import LastLayer, mme
from ducats.objectives.sdm import sdm
from ducats.objectives.selftraining import (
    Densifier,
    Prototypes,
    Teacher,
    TwoHeads,
    mrkld,
    proda,
    seg_uncertainty,
    tpld,
)
from ducats.objectives.softmax import softmax
from ducats.objectives.tqs import Observers, tqs
from ducats.objectives.waal import waal
from ducats.objectives.witnesses import WITNESSES, Critic, Discriminator

Objective = Callable[..., Losses]

OBJECTIVES: Mapping[str, Objective | Training] = {
    "duc": Training(duc, sure_of_evidence, strong=lambda params: bool(params.get("fixmatch"))),
    "euq": Training(euq, sure_of_class),
    "softmax": softmax,
    "adversarial": Training(adversarial, Discriminator),
    "waal": Training(waal, Critic),
    "mme": Training(mme, LastLayer),
    "eada": Training(eada, Level),
    "tqs": Training(tqs, Observers, recordable=False),
    "sdm": sdm,
    "mada": Training(mada, TargetAnchors),
    "mrkld": Training(mrkld, Teacher),
    "seg_uncertainty": Training(seg_uncertainty, TwoHeads),
    "tpld": Training(tpld, Densifier),
    "proda": Training(proda, Prototypes),
}

__all__ = [
    "OBJECTIVES",
    "WITNESSES",
    "Batch",
    "Beside",
    "Companion",
    "Labelled",
    "Look",
    "Losses",
    "Moment",
    "Objective",
    "Remembered",
    "Training",
    "as_training",
    "duc",
    "known",
    "means",
    "softmax",
]
