"""Objectives: how to train.

An objective is a function from a model and a batch to named losses; the engine adds them up. Each stream is
forwarded on its own, so that batch-norm statistics stay per domain. Its knobs are keyword-only.
"""

from collections.abc import Callable, Mapping

from ducats.objectives.batch import Batch, Labelled, Losses, known
from ducats.objectives.evidential import duc
from ducats.objectives.means import means
from ducats.objectives.softmax import softmax

Objective = Callable[..., Losses]

OBJECTIVES: Mapping[str, Objective] = {
    "duc": duc,
    "softmax": softmax,
}

__all__ = ["OBJECTIVES", "Batch", "Labelled", "Losses", "Objective", "duc", "known", "means", "softmax"]
