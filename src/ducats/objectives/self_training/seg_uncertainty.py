"""Pseudo-labels rectified by the disagreement of two classifiers (Zheng and Yang, IJCV 2021)."""

import torch
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    FrozenCopy,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
    cast_to_weights,
    features_of,
    require_feature_width,
)
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_unlabelled
from ducats.objectives.reduction import masked_means
from ducats.objectives.self_training.output_space import (
    OutputDiscriminator,
    output_space_adversarial_loss,
    require_segmentation,
)
from ducats.objectives.self_training.pseudo_label_ops import (
    coarse_log_alpha,
    log_probability_of,
    stack_outputs,
)
from ducats.objectives.self_training.round_schedule import check_round_schedule, starting_round
from ducats.objectives.softmax import softmax


class TwoHeads(AuxiliaryModule):
    """Second classifier on the model's features, and frozen copies of both classifiers for pseudo-labels.

    Args:
        warmup: fraction of the training for stage I, which has no pseudo-labels.
        rounds: number of times the copies are updated, first at the start of stage II.
        dropout: dropout rate of the features for the second classifier.
        hidden: channels of the discriminator's first layer.
    """

    stage: Tensor  # 0 in stage I, 1 in stage II

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        warmup: float = 0.5,
        rounds: int = 1,
        dropout: float = 0.1,
        hidden: int = 64,
    ) -> None:
        super().__init__()
        require_segmentation(context, "seg_uncertainty")
        check_round_schedule(warmup, rounds)
        self.warmup, self.rounds = warmup, rounds
        width = require_feature_width(context, "the objective 'seg_uncertainty'")
        self.dropout, self.aux = nn.Dropout(dropout), nn.Conv2d(width, context.classes, 1)
        self.frozen_model = FrozenCopy(context.model, context.autocast_dtype)
        self.frozen_aux = FrozenCopy(self.aux)
        self.discriminator = OutputDiscriminator(context.classes, hidden)
        self.register_buffer("stage", torch.zeros(()))

    def is_due(self, context: RefreshContext) -> bool:
        """Whether stage II or a further round of it starts now."""
        return starting_round(context, self.warmup, self.rounds) > 0

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:  # noqa: ARG002
        """Copy both classifiers."""
        self.frozen_model.ema_update()
        self.frozen_aux.ema_update()
        self.stage.fill_(1.0)

    def aux_output(self, output: Output) -> Output:
        """Return the output of the second classifier for the same images."""
        features = cast_to_weights(features_of(output), self.aux)
        return output._replace(z=self.aux(self.dropout(features)), features=None)

    def pseudo_label_scores(self, images: Tensor, aux: float) -> Tensor:
        """Compute class scores: probability of the first copy plus ``aux`` times that of the second."""
        first = self.frozen_model(images)
        second = self.frozen_aux.model(cast_to_weights(features_of(first), self.frozen_aux))
        second_log_alpha = coarse_log_alpha(first._replace(z=second))
        return coarse_log_alpha(first).softmax(1) + aux * second_log_alpha.softmax(1)


def seg_uncertainty(
    model: ForwardFn,
    batch: Batch,
    heads: TwoHeads,
    *,
    aux: float = 0.5,
    memory: float = 0.1,
    domain: float = 0.001,
    rectified: float = 1.0,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Train two classifiers to agree, then weight pseudo-labels by their disagreement.

    Both classifiers learn from labels. On target data, stage I adds ``memory`` times ``KL(main || aux)`` and
    an adversarial loss in output space. Stage II replaces these by ``CE exp(-D) + D`` on pseudo-labels, with
    ``D = KL(aux || main)``.

    Args:
        aux: weight of the second classifier, in its losses and in pseudo-labels.
        memory: weight of the memory regularisation in stage I.
        domain: weight of the adversarial loss for the model, in stage I.
        rectified: weight of the loss on pseudo-labels in stage II.
    """
    losses = softmax(model, batch, source=source, target=target)
    aux_losses = softmax(
        lambda images: heads.aux_output(model(images)), batch, source=aux * source, target=aux * target
    )
    losses |= {name.replace("/nll", "/aux"): loss for name, loss in aux_losses.items()}
    if batch.target is None:
        return losses
    images, label_maps = batch.target
    student = model(images)
    aux_output, stage = heads.aux_output(student), heads.stage
    classes = student.z.shape[1]
    stacked_output = stack_outputs(student, [aux_output.z], [heads.pseudo_label_scores(images, aux)])

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p, log_q = z[:, :classes].log_softmax(1), z[:, classes : 2 * classes].log_softmax(1)
        label = z[:, 2 * classes :].detach().argmax(1)
        agreement = (log_p.exp() * (log_p - log_q)).sum(1)
        disagreement = (log_q.exp() * (log_q - log_p)).sum(1)
        confidence = torch.exp(-disagreement)
        first, second = (
            confidence * -log_probability_of(log, label) + disagreement for log in (log_p, log_q)
        )
        return agreement, first + aux * second

    agreement, rectified_loss = masked_means(stacked_output, formula, label_maps, is_unlabelled)
    losses["target/memory"] = memory * (1 - stage) * agreement
    losses["pseudo/rectified"] = rectified * stage * rectified_loss
    if domain:
        losses["domain/nll"] = output_space_adversarial_loss(
            heads.discriminator, model(batch.source.images), student, domain * (1 - stage)
        )
    return losses


SEG_UNCERTAINTY_SPEC = ObjectiveSpec(seg_uncertainty, TwoHeads)
