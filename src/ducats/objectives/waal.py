"""Objective of WAAL (Shui et al., AISTATS 2020): features that align labelled and unlabelled data."""

from ducats.objectives.auxiliary import ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.probes import Critic
from ducats.objectives.softmax import softmax


def waal(
    model: ForwardFn,
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
    """
    losses = softmax(model, batch, source=source, target=target)
    critic_losses = critic.adversarial_losses(model, batch, weight)
    return losses | {f"critic/{name}": loss for name, loss in critic_losses.items()}


WAAL_SPEC = ObjectiveSpec(waal, Critic)
