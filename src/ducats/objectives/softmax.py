"""Cross-entropy, the objective of the baselines."""

from torch import Tensor

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.auxiliary import AuxiliaryModule, ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.label_propagation import LabelPropagation
from ducats.objectives.reduction import labelled_losses


def softmax(
    model: ForwardFn,
    batch: Batch,
    auxiliary: AuxiliaryModule | None = None,  # noqa: ARG001 - its labels are in the batch
    *,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on the source and on the labelled and pseudo-labelled target.

    With ``alpha = exp z`` the evidential likelihood is the softmax cross-entropy of ``z``.

    Args:
        source: weight of the loss on the source.
        target: weight of the loss on labelled and pseudo-labelled target data.
    """
    return labelled_losses(model, batch, _cross_entropy, {"nll": 1.0}, source=source, target=target)


def _cross_entropy(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return (negative_log_likelihood(z, label),)


SOFTMAX_SPEC = ObjectiveSpec(softmax, LabelPropagation)
