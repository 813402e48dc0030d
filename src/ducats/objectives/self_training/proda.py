"""ProDA: pseudo-labels rectified by class prototypes, then distillation (Zhang et al., CVPR 2021)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ducats.acquisition.class_descriptors import class_feature_sums
from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    FrozenCopy,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
    features_of,
    require_feature_width,
)
from ducats.objectives.batch import Batch, ForwardFn, LabelledImages, Losses, is_unlabelled
from ducats.objectives.reduction import masked_means
from ducats.objectives.self_training.colour_jitter import jitter_colours
from ducats.objectives.self_training.output_space import (
    OutputDiscriminator,
    output_space_adversarial_loss,
    require_segmentation,
)
from ducats.objectives.self_training.pseudo_label_ops import (
    MIN_KEPT_FRACTION,
    coarse_log_alpha,
    expand_class_values,
    log_probability_of,
    stack_outputs,
)
from ducats.objectives.self_training.round_schedule import nearest_epoch
from ducats.objectives.softmax import softmax

UNSEEN_CLASS_DISTANCE = 1e4  # distance of a class that was never predicted
NEG_LOG_ZERO = -math.log(1e-4)  # value of -log 0 in the reverse cross-entropy


class PrototypeTeacher(AuxiliaryModule):
    """Class prototypes on the target, a moving average of the model, and a frozen teacher.

    The average stops in the distillation, where it equals the teacher.

    Args:
        warmup: fraction of the training before stage 1.
        distillation_start: fraction of the training before the distillation; 1: no distillation.
        hidden: channels of the discriminator's first layer.
    """

    prototypes: Tensor  # (C, D)
    has_prototype: Tensor  # (C,), 0 for classes that were never predicted
    stage: Tensor  # 0: warm-up, 1, 2: distillation

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        warmup: float = 0.3,
        distillation_start: float = 0.7,
        hidden: int = 64,
    ) -> None:
        super().__init__()
        require_segmentation(context, "proda")
        if not 0 <= warmup < distillation_start <= 1:
            raise ValueError(
                f"warmup={warmup} and distillation_start={distillation_start} must satisfy "
                "0 <= warmup < distillation_start <= 1"
            )
        self.warmup, self.distillation_start = warmup, distillation_start
        width = require_feature_width(context, "the objective 'proda'")
        self.teacher = FrozenCopy(context.model, context.autocast_dtype)
        self.ema_model = FrozenCopy(context.model, context.autocast_dtype)
        self.discriminator = OutputDiscriminator(context.classes, hidden)
        self.register_buffer("prototypes", torch.zeros(context.classes, width))
        self.register_buffer("has_prototype", torch.ones(context.classes))
        self.register_buffer("stage", torch.zeros(()))

    def is_due(self, context: RefreshContext) -> bool:
        """Whether stage 1 or the distillation starts now."""
        return context.epochs_done in (
            nearest_epoch(fraction, context.epochs) for fraction in (self.warmup, self.distillation_start)
        )

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Copy the model as the new teacher; at the start of stage 1, also compute the prototypes."""
        self.teacher.ema_update()
        self.ema_model.ema_update()
        if context.epochs_done != nearest_epoch(self.warmup, context.epochs):
            self.stage.fill_(2.0)
            return
        total, n_images = torch.zeros_like(self.prototypes), torch.zeros_like(self.has_prototype)
        for _, output in full_pass.pool():
            means, is_present = image_class_means(output)
            total, n_images = total + means.sum(0), n_images + is_present.sum(0)
        self.prototypes.copy_(total / n_images.clamp(min=1)[:, None])
        self.has_prototype.copy_(n_images > 0)
        self.stage.fill_(1.0)

    def log_assignment(self, features: Tensor, tau: float) -> Tensor:
        """Compute ``log softmax_c(-|f - prototype_c| / tau)``: ``(N, D, h, w) -> (N, C, h, w)``."""
        with torch.autocast(device_type=features.device.type, enabled=False):
            f = features.to(self.prototypes.dtype)
            own = self.prototypes.clone()  # backward needs them as they were before the update
            inner = torch.einsum("ndhw,cd->nchw", f, own)
            squared = (f**2).sum(1, keepdim=True) - 2 * inner + expand_class_values((own**2).sum(1), inner)
            distance = squared.clamp(min=1e-6).sqrt() / tau
            return torch.where(
                expand_class_values(self.has_prototype, distance) > 0, -distance, -UNSEEN_CLASS_DISTANCE
            ).log_softmax(1)

    def update_prototypes(self, output: Output, ema_rate: float) -> None:
        """Move each prototype towards its class mean in one image after another, if the class is present."""
        means, is_present = image_class_means(output)
        for mean, present in zip(means, is_present, strict=True):
            self.prototypes.add_(torch.where(present[:, None], ema_rate * (mean - self.prototypes), 0.0))


def image_class_means(output: Output) -> tuple[Tensor, Tensor]:
    """Return the mean features of each predicted class of each image, and whether it is predicted.

    The shapes are ``(N, C, D)``, zero for classes that are not predicted, and ``(N, C)``.
    """
    total, size = class_feature_sums(output.z, features_of(output))
    return total / size.clamp(min=1)[..., None], size > 0


def proda(
    model: ForwardFn,
    batch: Batch,
    auxiliary: PrototypeTeacher,
    *,
    ce: float = 0.1,
    rce: float = 1.0,
    reg: float = 0.1,
    consistency: float = 10.0,
    kd: float = 1.0,
    jitter: float = 0.4,
    tau: float = 1.0,
    confidence_threshold: float = 0.95,
    domain: float = 0.01,
    ema_rate: float = 0.001,
    prototype_ema_rate: float = 1e-4,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labels, and on teacher pseudo-labels rectified by the distance to class prototypes.

    Warm-up: least-squares adversarial loss in output space. Stage 1: symmetric cross-entropy on
    ``argmax_c p_c w_c``, the regulariser of MRKLD, and consistency of the prototype assignments of the strong
    view with those of a moving average of the model. Distillation: cross-entropy on confident pseudo-labels
    of a new teacher, and its probabilities.

    Args:
        ce: weight of the cross-entropy in stage 1.
        rce: weight of the reverse cross-entropy in stage 1.
        reg: weight of the regulariser ``-mean_c log p_c`` in stage 1.
        consistency: weight of ``mean_c w_c log(w_c / w'_c)``, with the two prototype assignments, in stage 1.
        kd: weight of ``mean_c q_c (log q_c - p_c)``, with the teacher's ``q``, in the distillation.
        jitter: maximum relative change of brightness, contrast and saturation in the strong view.
        tau: temperature of the prototype assignment.
        confidence_threshold: pseudo-labels in the distillation have a higher confidence.
        domain: weight of the adversarial loss for the model, in the warm-up.
        ema_rate: update rate of the model's moving average.
        prototype_ema_rate: update rate of the prototypes for each image.
    """
    if tau <= 0:
        raise ValueError(f"tau must be positive, not {tau}")
    if batch.target is None:
        return softmax(model, batch, source=source, target=target)
    stage = auxiliary.stage
    is_warmup, is_stage_one, is_distillation = ((stage == number).float() for number in range(3))
    weak_images = strong_images = images = batch.target.images
    label_maps, source_images = batch.target.labels, batch.source.images
    if jitter:
        strong_images = jitter_colours(weak_images, jitter)
        images = torch.where(stage == 2, strong_images, weak_images)
        source_images = torch.where(stage == 0, jitter_colours(source_images, jitter), source_images)
        batch = replace(
            batch,
            source=LabelledImages(source_images, batch.source.labels),
            target=LabelledImages(images, label_maps),
        )
    losses = softmax(model, batch, source=source, target=target)
    auxiliary.ema_model.ema_update(ema_rate * (1 - is_distillation))
    ema_output = auxiliary.ema_model(images)
    log_assignment = auxiliary.log_assignment(features_of(ema_output), tau)
    teacher_log_probability = coarse_log_alpha(auxiliary.teacher(weak_images)).log_softmax(1)
    score = torch.where(
        stage == 2, teacher_log_probability, teacher_log_probability + log_assignment
    ).softmax(1)
    student = model(images)
    classes, min_confidence = student.z.shape[1], confidence_threshold * is_distillation

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p = z[:, :classes].log_softmax(1)
        log_q = z[:, classes : 2 * classes].detach().log_softmax(1)
        best, label = z[:, 2 * classes :].detach().max(1)
        label_log_p = log_probability_of(log_p, label)
        # The published code passes probabilities to a function that expects log probabilities.
        divergence = (log_q.exp() * (log_q - log_p.exp())).mean(1)
        kept = best > min_confidence
        fit = torch.where(kept, -label_log_p, 0.0)
        reverse = NEG_LOG_ZERO * (1 - label_log_p.exp())
        return fit, reverse, -log_p.mean(1), divergence, kept.to(z.dtype)

    stacked_output = stack_outputs(student, [ema_output.z], [score])
    fit, reverse, smooth, divergence, kept = masked_means(stacked_output, formula, label_maps, is_unlabelled)
    fit = fit / kept.detach().clamp(min=MIN_KEPT_FRACTION)
    losses["pseudo/nll"] = (ce * is_stage_one + is_distillation) * fit
    losses["pseudo/rce"] = rce * is_stage_one * reverse
    losses["pseudo/reg"] = reg * is_stage_one * smooth
    losses["target/kd"] = torch.where(stage == 2, kd * divergence, 0.0)  # negative
    if consistency:
        own_assignment = auxiliary.log_assignment(features_of(model(strong_images)), tau)
        divergence = log_assignment.exp() * (log_assignment - own_assignment)
        losses["target/consistency"] = consistency * is_stage_one * divergence.mean()
    if domain:
        losses["domain/least_squares"] = is_warmup * output_space_adversarial_loss(
            auxiliary.discriminator, model(source_images), student, domain
        )
    auxiliary.update_prototypes(ema_output, prototype_ema_rate)
    return losses


PRODA_SPEC = ObjectiveSpec(proda, PrototypeTeacher, transforms_images=True)
