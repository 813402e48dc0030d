"""MRKLD: class-balanced self-training with a regularised model (Zou et al., ICCV 2019)."""

from torch import Tensor

from ducats.objectives.auxiliary import ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_unlabelled
from ducats.objectives.self_training.pseudo_label_ops import (
    expand_class_values,
    log_probability_of,
    means_over_kept,
    stack_outputs,
    unlabelled_target,
)
from ducats.objectives.self_training.teacher import Teacher
from ducats.objectives.softmax import softmax


def mrkld(
    model: ForwardFn,
    batch: Batch,
    teacher: Teacher,
    *,
    nll: float = 1.0,
    reg: float = 0.1,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labels and on confident pseudo-labels, with a regulariser towards uniform predictions.

    The pseudo-label is ``argmax_c p_c / threshold_c`` of the teacher, kept if that ratio is at least 1.
    On kept positions the loss is ``nll`` times the cross-entropy plus ``reg`` times ``-mean_c log p_c``.

    Args:
        nll: weight of the cross-entropy on pseudo-labels.
        reg: weight of the regulariser: up to a constant, the KL divergence from the uniform distribution.
    """
    losses = softmax(model, batch, source=source, target=target)
    unlabelled_data = unlabelled_target(batch)
    if unlabelled_data is None or not (nll or reg):
        return losses
    stacked_output = stack_outputs(
        model(unlabelled_data.images), [teacher.frozen_model(unlabelled_data.images).z]
    )
    threshold = teacher.log_threshold

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        own, others = z.chunk(2, 1)
        log_p, log_q = own.log_softmax(1), others.detach().log_softmax(1)
        best, label = (log_q - expand_class_values(threshold, log_q)).max(1)
        return -log_probability_of(log_p, label), -log_p.mean(1), best >= 0

    fit, smooth = means_over_kept(stacked_output, formula, unlabelled_data.labels, is_unlabelled)
    return losses | {"pseudo/nll": nll * fit, "pseudo/reg": reg * smooth}


MRKLD_SPEC = ObjectiveSpec(mrkld, Teacher)
