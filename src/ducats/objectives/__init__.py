"""Objectives: how to train.

An objective is a function from a model and a batch to named losses; the engine adds them up. Each stream is
forwarded on its own, so that batch-norm statistics stay per domain; the same images, asked about twice in a
step, are forwarded once. Its knobs are keyword-only. `Training` says what else it needs: a companion that it
trains or reads, a strong view of unlabelled images.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.adversarial import adversarial
from ducats.objectives.batch import Batch, Labelled, Losses, known
from ducats.objectives.companion import Beside, Companion, Look, Moment, Remembered, Training, as_training
from ducats.objectives.evidential import duc
from ducats.objectives.means import means
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import WITNESSES, Discriminator

Objective = Callable[..., Losses]

OBJECTIVES: Mapping[str, Objective | Training] = {
    "duc": duc,
    "softmax": softmax,
    "adversarial": Training(adversarial, Discriminator),
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
