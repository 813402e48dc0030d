"""Pseudo-labels rectified by the disagreement of two classifiers (Zheng and Yang, IJCV 2021)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ducats.data.domain import VOID
from ducats.dirichlet import negative_log_likelihood
from ducats.models import upsampling
from ducats.models.deeplab import HeadV2, request_earlier_features
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
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_labelled, is_unlabelled
from ducats.objectives.reduction import masked_means, pixel_values
from ducats.objectives.self_training.output_space import (
    OutputDiscriminator,
    output_space_adversarial_loss,
    require_segmentation,
)
from ducats.objectives.self_training.pseudo_label_ops import (
    coarse_log_alpha,
    log_probability_of,
    resize_to,
    stack_outputs,
)
from ducats.objectives.self_training.round_schedule import (
    check_round_schedule,
    nearest_epoch,
    starting_round,
)
from ducats.objectives.softmax import softmax

AUX_RATES, AUX_STD = (6, 12, 18, 24), 0.001  # dilations and initial weights of the second classifier


class ClassBalance(nn.Module):
    """Class weights of a batch: the product of a weight for small classes and one for rarely seen classes.

    A class that covers less than ``small`` of the batch's pixels has the first weight ``max_weight``, others
    have 1. The second is a moving average, over the steps, of ``max_weight`` if no pixel of the batch has the
    class, and 1 otherwise.
    """

    rarity: Tensor  # (C,), the second weight

    def __init__(self, classes: int, max_weight: float, small: float, rate: float) -> None:
        super().__init__()
        self.max_weight, self.small, self.rate = max_weight, small, rate
        self.register_buffer("rarity", torch.ones(classes))

    @torch.no_grad()
    def forward(self, labels: Tensor) -> Tensor:
        """Update the moving average and return the weights ``(C,)`` for a batch of label maps."""
        counts = torch.stack([(labels == c).sum() for c in range(len(self.rarity))])
        self.rarity.lerp_(self._max_where(counts == 0), self.rate)
        return self._max_where(counts < self.small * labels.numel()) * self.rarity

    def _max_where(self, condition: Tensor) -> Tensor:
        return torch.where(condition, self.max_weight, 1.0).to(self.rarity.dtype)


class TwoHeads(AuxiliaryModule):
    """Second classifier, and frozen copies of both classifiers for pseudo-labels.

    The second classifier is a head of DeepLab-v2 on the backbone's stage before the last one. For models
    other than DeepLab, its input is the model's features.

    Args:
        warmup: fraction of the training for stage I, which has no pseudo-labels.
        rounds: number of times the copies are updated, first at the start of stage II.
        memory_start: fraction of stage I without memory regularisation.
        dropout: dropout rate of the input channels of the second classifier.
        hidden: channels of the first layer of each discriminator.
        max_weight: weight of small classes, and again of rarely seen ones; 1: no class balance.
        small: a class is small if it covers less than this fraction of the batch.
        rarity_rate: update rate of the moving average that finds rarely seen classes; 0: they have weight 1.
        scales: relative sizes of the images whose predictions are averaged for pseudo-labels; each is also
            mirrored.
    """

    stage: Tensor  # 0 in stage I, 1 in stage II
    has_memory: Tensor  # 1 after `memory_start`

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        warmup: float = 0.5,
        rounds: int = 1,
        memory_start: float = 0.6,
        dropout: float = 0.1,
        hidden: int = 64,
        max_weight: float = 7.0,
        small: float = 1 / 128,
        rarity_rate: float = 0.1,
        scales: Sequence[float] = (1.0, 1.25),
    ) -> None:
        super().__init__()
        require_segmentation(context, "seg_uncertainty")
        check_round_schedule(warmup, rounds)
        for name, value in {"memory_start": memory_start, "small": small, "rarity_rate": rarity_rate}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a fraction and must be in [0, 1], not {value}")
        if max_weight < 1:
            raise ValueError(f"max_weight must be at least 1, not {max_weight}")
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales must be a list of positive numbers, not {scales}")
        self.warmup, self.rounds, self.memory_start, self.scales = warmup, rounds, memory_start, scales
        width = request_earlier_features(context.model) or require_feature_width(
            context, "the objective 'seg_uncertainty'"
        )
        self.dropout, self.aux = nn.Dropout2d(dropout), HeadV2(width, context.classes, AUX_RATES, AUX_STD)
        self.frozen_model = FrozenCopy(context.model, context.autocast_dtype)
        self.frozen_aux = FrozenCopy(self.aux)
        self.discriminator = OutputDiscriminator(context.classes, hidden)
        self.aux_discriminator = OutputDiscriminator(context.classes, hidden)
        self.source_balance = ClassBalance(context.classes, max_weight, small, rarity_rate)
        self.pseudo_balance = ClassBalance(context.classes, max_weight, small, rarity_rate)
        self.register_buffer("stage", torch.zeros(()))
        self.register_buffer("has_memory", torch.zeros(()))

    def is_due(self, context: RefreshContext) -> bool:
        """Whether the memory regularisation, stage II or a further round of it starts now."""
        memory_epoch = nearest_epoch(self.memory_start * self.warmup, context.epochs)
        return context.epochs_done == memory_epoch or starting_round(context, self.warmup, self.rounds) > 0

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:  # noqa: ARG002
        """Start the memory regularisation, or copy both classifiers for stage II."""
        if not starting_round(context, self.warmup, self.rounds):
            self.has_memory.fill_(1.0)
            return
        self.frozen_model.ema_update()
        self.frozen_aux.ema_update()
        self.pseudo_balance.rarity.fill_(1.0)
        self.stage.fill_(1.0)

    def aux_output(self, output: Output) -> Output:
        """Return the output of the second classifier for the same images."""
        return classify(self.aux, output, self.dropout)

    @torch.no_grad()
    def pseudo_labels_of(self, images: Tensor, label_maps: Tensor, aux: float) -> Tensor:
        """Predict unlabelled pixels by the copies of both classifiers; VOID elsewhere.

        Args:
            aux: weight of the second classifier.
        """
        scores = []
        for scale in self.scales:
            size = round(scale * images.shape[2]), round(scale * images.shape[3])
            resized = images if scale == 1 else upsampling.interpolate(images, size)
            mirrored = self._copies_probability(resized.flip(3), aux).flip(3)
            scores.append(Output(self._copies_probability(resized, aux) + mirrored, None, size))
        predicted = pixel_values(scores, lambda *maps: sum(maps[1:-1], maps[0]).argmax(1), label_maps)
        return torch.where(is_unlabelled(label_maps), predicted, VOID)

    def _copies_probability(self, images: Tensor, aux: float) -> Tensor:
        first = self.frozen_model(images)
        return fused_log_alpha(first, classify(self.frozen_aux.model, first), aux).softmax(1)


def classify(head: nn.Module, output: Output, dropout: nn.Module | None = None) -> Output:
    """Return the output of a second classifier for the same images."""
    features = features_of(output) if output.earlier_features is None else output.earlier_features
    features = cast_to_weights(features, head)
    logits, _ = head([features if dropout is None else dropout(features)])
    return output._replace(z=logits.float() if logits.dtype.itemsize < 4 else logits, features=None)


def fused_log_alpha(main: Output, second: Output, aux: float) -> Tensor:
    """Return ``main + aux * second`` of log alpha on the network's grid: logits of the fused prediction."""
    log_alpha = coarse_log_alpha(main)
    return log_alpha + aux * resize_to(log_alpha.shape[2:], coarse_log_alpha(second))


def balanced_nll(output: Output, labels: Tensor, class_weight: Tensor, hard: float) -> Tensor:
    """Compute the class-weighted mean of the cross-entropy over the hardest labelled pixels.

    Args:
        class_weight: ``(C,)``.
        hard: fraction of the pixels to ignore, those of the lowest weighted cross-entropy. Pixels without
            label count as having none.
    """

    def weight_of(label: Tensor) -> Tensor:
        return class_weight[label.clamp(min=0)]

    if hard:
        losses = pixel_values([output], lambda z, y: weight_of(y) * negative_log_likelihood(z, y), labels)
        rank = math.ceil(hard * (losses.numel() - 1))
        labels = torch.where(losses >= losses.flatten().sort().values[rank], labels, VOID)
    loss, weight = masked_means(
        output, lambda z, y: (weight_of(y) * negative_log_likelihood(z, y), weight_of(y)), labels, is_labelled
    )
    return loss / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute ``KL(p || q)`` at each position: ``(N, C, ...) -> (N, ...)``."""
    return (log_p.exp() * (log_p - log_q)).sum(1)


def seg_uncertainty(
    model: ForwardFn,
    batch: Batch,
    heads: TwoHeads,
    *,
    aux: float = 0.5,
    hard: float = 0.8,
    memory: float = 0.1,
    domain: float = 0.001,
    aux_domain: float = 0.0002,
    rectified: float = 1.0,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Train two classifiers on the source, then on pseudo-labels weighted by their disagreement.

    Stage I: class-balanced cross-entropy of the hardest source pixels, a least-squares adversarial loss in
    output space and, late, the KL divergences of both predictions from their detached fusion. Stage II has
    only ``w CE exp(-D) + D`` on pseudo-labels, with ``D = KL(aux || main)`` for the main classifier,
    ``D = KL(main || aux)`` for the second one, and class weights ``w``. Both learn from target labels.

    Args:
        aux: weight of the second classifier, in its losses and in fused predictions.
        hard: fraction of the source pixels, the easiest, that have no loss.
        memory: weight of the memory regularisation in stage I.
        domain: weight of ``2 (t - 1)^2`` for the main classifier, with the discriminator's value ``t`` for
            target, in stage I.
        aux_domain: the same for the second classifier.
        rectified: weight of the loss on pseudo-labels in stage II.
        source: weight of the loss on the source, in stage I.
    """
    if not 0 <= hard < 1:
        raise ValueError(f"hard is a fraction of the pixels and must be in [0, 1), not {hard}")
    losses = softmax(model, batch, source=0.0, target=target)
    aux_losses = softmax(
        lambda images: heads.aux_output(model(images)), batch, source=0.0, target=aux * target
    )
    losses |= {name.replace("/nll", "/aux"): loss for name, loss in aux_losses.items()}
    in_stage_one = 1 - heads.stage
    source_output = model(batch.source.images)
    source_aux = heads.aux_output(source_output)
    if source:
        class_weight = heads.source_balance(batch.source.labels)
        for name, output, weight in (("nll", source_output, source), ("aux", source_aux, aux * source)):
            loss = balanced_nll(output, batch.source.labels, class_weight, hard)
            losses[f"source/{name}"] = weight * in_stage_one * loss
    if batch.target is None:
        return losses
    images, label_maps = batch.target
    student = model(images)
    student_aux = heads.aux_output(student)
    pseudo_labels = heads.pseudo_labels_of(images, label_maps, aux)
    pseudo_weight: Tensor = heads.pseudo_balance(pseudo_labels)

    def formula(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        main_z, aux_z = z.chunk(2, 1)
        log_p, log_q = main_z.log_softmax(1), aux_z.log_softmax(1)
        log_fused = (main_z + aux * aux_z).detach().log_softmax(1)
        weight = pseudo_weight[label.clamp(min=0)]

        def rectified_loss(own: Tensor, other: Tensor) -> Tensor:
            disagreement = kl_divergence(other, own)
            fit = -weight * log_probability_of(own, label.clamp(min=0))
            return fit * torch.exp(-disagreement) + disagreement

        return (
            kl_divergence(log_fused, log_p) + kl_divergence(log_fused, log_q),
            rectified_loss(log_p, log_q) + aux * rectified_loss(log_q, log_p),
        )

    memory_loss, pseudo_loss = masked_means(
        stack_outputs(student, [student_aux.z]), formula, pseudo_labels, is_labelled
    )
    losses["target/memory"] = memory * in_stage_one * heads.has_memory * memory_loss
    losses["pseudo/rectified"] = rectified * heads.stage * pseudo_loss
    fused_source = Output(fused_log_alpha(source_output, source_aux, aux), None, source_output.size)
    for name, discriminator, output, strength in (
        ("least_squares", heads.discriminator, student, domain),
        ("aux", heads.aux_discriminator, student_aux, aux_domain),
    ):
        if strength:
            losses[f"domain/{name}"] = in_stage_one * output_space_adversarial_loss(
                discriminator, fused_source, output, 2 * strength
            )
    return losses


SEG_UNCERTAINTY_SPEC = ObjectiveSpec(seg_uncertainty, TwoHeads, transforms_images=True)
