"""Pseudo-labels rectified by the disagreement of two classifiers (Zheng and Yang, IJCV 2021)."""

import torch
from torch import Tensor, nn

from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import Beside, Companion, Look, Moment, Still, as_weights, width_of
from ducats.objectives.means import means
from ducats.objectives.selftraining.output_space import OutputDiscriminator, against, check_pixels
from ducats.objectives.selftraining.rounds import begins, check_rounds
from ducats.objectives.selftraining.stacked import at, evident, stacked
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import unlabelled
from ducats.rows import Output


class TwoHeads(Companion):
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
        beside: Beside,
        *,
        warmup: float = 0.5,
        rounds: int = 1,
        dropout: float = 0.1,
        hidden: int = 64,
    ) -> None:
        super().__init__()
        check_pixels(beside, "seg_uncertainty")
        check_rounds(warmup, rounds)
        self.warmup, self.rounds = warmup, rounds
        width = width_of(beside, "the objective 'seg_uncertainty'")
        self.drop, self.aux = nn.Dropout(dropout), nn.Conv2d(width, beside.classes, 1)
        self.still, self.still_aux = Still(beside.model, beside.autocast), Still(self.aux)
        self.discriminator = OutputDiscriminator(beside.classes, hidden)
        self.register_buffer("stage", torch.zeros(()))

    def due(self, moment: Moment) -> bool:
        """Whether stage II or a further round of it starts now."""
        return begins(moment, self.warmup, self.rounds) > 0

    def refresh(self, moment: Moment, look: Look) -> None:  # noqa: ARG002
        """Copy both classifiers."""
        self.still.follow()
        self.still_aux.follow()
        self.stage.fill_(1.0)

    def second(self, output: Output) -> Output:
        """Return the output of the second classifier for the same images."""
        assert output.features is not None
        return output._replace(z=self.aux(self.drop(as_weights(output.features, self.aux))), features=None)

    def pseudo(self, images: Tensor, aux: float) -> Tensor:
        """Compute class scores: probability of the first copy plus ``aux`` times that of the second."""
        first = self.still(images)
        assert first.features is not None
        second = self.still_aux.model(as_weights(first.features, self.still_aux))
        return evident(first).softmax(1) + aux * evident(first._replace(z=second)).softmax(1)


def seg_uncertainty(
    model: Forward,
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
        source: weight of the cross-entropy on source data.
        target: weight of the cross-entropy on labelled target data.
    """
    losses = softmax(model, batch, source=source, target=target)
    by_second = softmax(
        lambda images: heads.second(model(images)), batch, source=aux * source, target=aux * target
    )
    losses |= {name.replace("/nll", "/aux"): loss for name, loss in by_second.items()}
    if batch.target is None:
        return losses
    images, maps = batch.target
    student = model(images)
    other, stage = heads.second(student), heads.stage
    classes = student.z.shape[1]
    three = stacked(student, [other.z], [heads.pseudo(images, aux)])

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p, log_q = z[:, :classes].log_softmax(1), z[:, classes : 2 * classes].log_softmax(1)
        label = z[:, 2 * classes :].detach().argmax(1)
        agree = (log_p.exp() * (log_p - log_q)).sum(1)
        apart = (log_q.exp() * (log_q - log_p)).sum(1)
        sure = torch.exp(-apart)
        first, second = (sure * -at(log, label) + apart for log in (log_p, log_q))
        return agree, first + aux * second

    agree, doubted = means(three, formula, maps, unlabelled)
    losses["target/memory"] = memory * (1 - stage) * agree
    losses["pseudo/rectified"] = rectified * stage * doubted
    if domain:
        losses["domain/nll"] = against(
            heads.discriminator, model(batch.source.images), student, domain * (1 - stage)
        )
    return losses
