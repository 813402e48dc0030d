"""Cross-entropy, for the baselines."""

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.batch import Batch, Forward, Losses, mean_where_known


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
    for name, known, weight in (("source", batch.source, source), ("labelled", batch.labelled, target)):
        if known is not None and weight:
            loss = negative_log_likelihood(model(known.images).z, known.labels)
            losses[f"{name}/nll"] = weight * mean_where_known(loss, known.labels)
    return losses
