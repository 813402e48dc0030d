"""Cross-entropy, for the baselines."""

from torch import Tensor

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.batch import Batch, Forward, Losses, known
from ducats.objectives.means import means


def softmax(model: Forward, batch: Batch, *, source: float = 1.0, target: float = 1.0) -> Losses:
    """Cross-entropy on source and on labelled target; unlabelled target is not looked at.

    With ``alpha = exp z`` the evidential likelihood is the softmax cross-entropy of ``z``.

    Args:
        model: images to log alpha.
        batch: the step's data.
        source: weight of the source's loss.
        target: weight of the labelled target's loss.
    """
    losses: Losses = {}
    streams = (
        ("source", batch.source, source),
        # Where pixels are bought; whole images are others than these.
        ("labelled", batch.target if batch.bought else None, target),
        ("labelled", batch.labelled, target),
    )
    for name, part, weight in streams:
        if part is not None and weight:
            (loss,) = means(model(part.images), _cross_entropy, part.labels, known)
            before = losses.get(f"{name}/nll")
            losses[f"{name}/nll"] = weight * loss if before is None else before + weight * loss
    return losses


def _cross_entropy(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return (negative_log_likelihood(z, label),)
