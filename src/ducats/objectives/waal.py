"""Objective of WAAL (Shui et al., AISTATS 2020): features that align labelled and unlabelled data."""

from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import Critic


def waal(
    model: Forward,
    batch: Batch,
    critic: Critic,
    *,
    weight: float = 2e-3,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labelled data, and an adversarial distance of labelled and unlabelled features.

    The critic g maximises ``mean g(U) - gamma mean g(L)`` with a gradient norm near 1. Its gradient with
    respect to the features is reversed, so the features minimise it.

    Args:
        weight: weight of the distance in the training of the model.
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
    """
    losses = softmax(model, batch, source=source, target=target)
    rivalry = critic.rivalry(model, batch, weight)
    return losses | {f"critic/{name}": loss for name, loss in rivalry.items()}
