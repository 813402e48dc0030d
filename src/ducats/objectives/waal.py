"""WAAL's objective (Shui et al., AISTATS 2020): features in which labelled and unlabelled look the same."""

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
    """Cross-entropy where labels are known, and features that bring both sides of a critic together.

    The critic widens ``mean g(U) - gamma mean g(L)`` with a slope near 1; the gradient that it sends on to
    the features is reversed, so that they narrow it.

    Args:
        model: images to log alpha.
        batch: the step's data.
        critic: the companion.
        weight: of the distance in the model's own training.
        source: weight of the source's cross-entropy.
        target: weight of the labelled target's cross-entropy.
    """
    losses = softmax(model, batch, source=source, target=target)
    rivalry = critic.rivalry(model, batch, weight)
    return losses | {f"critic/{name}": loss for name, loss in rivalry.items()}
