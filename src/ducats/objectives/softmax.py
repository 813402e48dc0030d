"""Cross-entropy, the objective of the baselines."""

from torch import Tensor

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.auxiliary import AuxiliaryContext, AuxiliaryModule, ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.label_propagation import LabelPropagation
from ducats.objectives.reduction import labelled_losses


def softmax(model: ForwardFn, batch: Batch, auxiliary: AuxiliaryModule | None = None, *, source: float = 1.0, target: float = 1.0) -> Losses:
    """Cross-entropy on the source and the labelled target.

    With ``alpha = exp z`` the evidential likelihood is the softmax cross-entropy of ``z``.

    Args:
        source: weight of the loss on the source.
        target: weight of the loss on the labelled target.
    """
    return labelled_losses(model, batch, _cross_entropy, {"nll": 1.0}, source=source, target=target)


def _cross_entropy(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    return (negative_log_likelihood(z, label),)


def _propagation(context: AuxiliaryContext, *, propagation_rate: float = 0.0, propagation_every: bool = False) -> LabelPropagation:
    return LabelPropagation(context, rate=propagation_rate, every_epoch=propagation_every)


SOFTMAX_SPEC = ObjectiveSpec(softmax, _propagation)
