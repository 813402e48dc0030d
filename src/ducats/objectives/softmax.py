"""Cross-entropy, for the baselines."""

from torch import Tensor

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.labelled import over_labelled


def softmax(model: Forward, batch: Batch, *, source: float = 1.0, target: float = 1.0) -> Losses:
    """Cross-entropy on source and on labelled target; unlabelled target is not looked at.

    With ``alpha = exp z`` the evidential likelihood is the softmax cross-entropy of ``z``.

    Args:
        model: images to log alpha.
        batch: the step's data.
        source: weight of the source's loss.
        target: weight of the labelled target's loss.
    """
    return over_labelled(model, batch, _cross_entropy, {"nll": 1.0}, source=source, target=target)


def _cross_entropy(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return (negative_log_likelihood(z, label),)
