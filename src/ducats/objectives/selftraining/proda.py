"""ProDA: pseudo-labels rectified by class prototypes, then distillation (Zhang et al., CVPR 2021)."""

import math

import torch
from torch import Tensor

from ducats.anchors import class_sums
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import Beside, Companion, Look, Moment, Still, width_of
from ducats.objectives.selftraining.jitter import jittered
from ducats.objectives.selftraining.output_space import OutputDiscriminator, against, check_pixels
from ducats.objectives.selftraining.rounds import epoch_of
from ducats.objectives.selftraining.stacked import at, by_class, evident, over_kept, stacked
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import unlabelled
from ducats.rows import Output

FAR = 1e4  # distance of a class that was never predicted
NEVER = -math.log(1e-4)  # value of -log 0 in the reverse cross-entropy


class Prototypes(Companion):
    """Class prototypes on the target, a moving average of the model, and a frozen teacher.

    Args:
        warmup: fraction of the training before stage 1.
        distil: fraction of the training before the distillation; 1: no distillation.
        hidden: channels of the discriminator's first layer.
    """

    prototypes: Tensor  # (C, D)
    seen: Tensor  # (C,), 0 for classes that were never predicted
    stage: Tensor  # 0: warm-up, 1, 2: distillation

    def __init__(self, beside: Beside, *, warmup: float = 0.3, distil: float = 0.7, hidden: int = 64) -> None:
        super().__init__()
        check_pixels(beside, "proda")
        if not 0 <= warmup < distil <= 1:
            raise ValueError(f"warmup={warmup} and distil={distil} must satisfy 0 <= warmup < distil <= 1")
        self.warmup, self.distil = warmup, distil
        width = width_of(beside, "the objective 'proda'")
        self.labels, self.slow = Still(beside.model, beside.autocast), Still(beside.model, beside.autocast)
        self.discriminator = OutputDiscriminator(beside.classes, hidden)
        self.register_buffer("prototypes", torch.zeros(beside.classes, width))
        self.register_buffer("seen", torch.ones(beside.classes))
        self.register_buffer("stage", torch.zeros(()))

    def due(self, moment: Moment) -> bool:
        """Whether stage 1 or the distillation starts now."""
        return moment.epoch in (epoch_of(share, moment.epochs) for share in (self.warmup, self.distil))

    def refresh(self, moment: Moment, look: Look) -> None:
        """Copy the model as the new teacher; at the start of stage 1, also compute the prototypes."""
        self.labels.follow()
        if moment.epoch != epoch_of(self.warmup, moment.epochs):
            self.stage.fill_(2.0)
            return
        self.slow.follow()
        total, size = torch.zeros_like(self.prototypes), torch.zeros_like(self.seen)
        for _, output in look.pool():
            assert output.features is not None
            found = class_sums(output.z, output.features)
            total, size = total + found[0].sum(0), size + found[1].sum(0)
        self.prototypes.copy_(total / size.clamp(min=1)[:, None])
        self.seen.copy_(size > 0)
        self.stage.fill_(1.0)

    def closeness(self, features: Tensor, tau: float) -> Tensor:
        """Compute ``log softmax_c(-|f - prototype_c| / tau)``: ``(N, D, h, w) -> (N, C, h, w)``."""
        with torch.autocast(device_type=features.device.type, enabled=False):
            f, own = features.to(self.prototypes.dtype), self.prototypes
            inner = torch.einsum("ndhw,cd->nchw", f, own)
            squared = (f**2).sum(1, keepdim=True) - 2 * inner + by_class((own**2).sum(1), inner)
            distance = squared.clamp(min=1e-6).sqrt() / tau
            return torch.where(by_class(self.seen, distance) > 0, -distance, -FAR).log_softmax(1)

    def move(self, said: Output, pace: float) -> None:
        """Move each prototype towards the mean of its class in the batch, if the class is present."""
        assert said.features is not None
        total, size = class_sums(said.z, said.features)
        total, size = total.sum(0), size.sum(0)[:, None]
        step = torch.where(size > 0, pace * (total / size.clamp(min=1) - self.prototypes), 0.0)
        self.prototypes.add_(step)


def proda(
    model: Forward,
    batch: Batch,
    companion: Prototypes,
    *,
    ce: float = 0.1,
    rce: float = 1.0,
    reg: float = 0.1,
    consistency: float = 10.0,
    jitter: float = 0.4,
    tau: float = 1.0,
    certain: float = 0.95,
    domain: float = 0.001,
    pace: float = 0.001,
    prototype_pace: float = 1e-4,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labels, and on teacher pseudo-labels rectified by the distance to class prototypes.

    Warm-up: adversarial loss in output space. Stage 1: symmetric cross-entropy on ``argmax_c p_c w_c``, the
    regulariser of MRKLD, and consistency of the prototype assignments with those of a moving average of the
    model. Distillation: cross-entropy on confident pseudo-labels of a new teacher.

    Args:
        ce: weight of the cross-entropy in stage 1.
        rce: weight of the reverse cross-entropy in stage 1.
        reg: weight of the regulariser ``-mean_c log p_c``.
        consistency: weight of the KL divergence between the two prototype assignments in stage 1.
        jitter: maximum relative change of brightness, contrast and saturation of the model's input.
        tau: temperature of the prototype assignment.
        certain: minimum confidence of a pseudo-label in the distillation.
        domain: weight of the adversarial loss for the model, in the warm-up.
        pace: update rate of the model's moving average.
        prototype_pace: update rate of the prototypes.
        source: weight of the cross-entropy on source data.
        target: weight of the cross-entropy on labelled target data.
    """
    if tau <= 0:
        raise ValueError(f"tau must be positive, not {tau}")
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, maps = batch.target
    companion.slow.follow(pace)
    slow = companion.slow(images)
    assert slow.features is not None
    companion.move(slow, prototype_pace)
    near = companion.closeness(slow.features, tau)
    stage = companion.stage
    first, second = (stage == 1).float(), (stage == 2).float()
    given = evident(companion.labels(images)).log_softmax(1)
    score = torch.where(stage == 2, given, given + near).softmax(1)
    student = model(jittered(images, jitter) if jitter else images)
    classes, floor = student.z.shape[1], certain * second

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p = z[:, :classes].log_softmax(1)
        best, label = z[:, classes:].detach().max(1)
        right = at(log_p, label)
        return -right, NEVER * (1 - right.exp()), -log_p.mean(1), best >= floor

    fit, reverse, smooth = over_kept(stacked(student, (), [score]), formula, maps, unlabelled)
    losses["pseudo/nll"] = (ce * first + second) * fit
    losses["pseudo/rce"] = rce * first * reverse
    losses["pseudo/reg"] = reg * (first + second) * smooth
    if consistency:
        assert student.features is not None
        apart = near.exp() * (near - companion.closeness(student.features, tau))
        losses["target/consistency"] = consistency * first * apart.sum(1).mean()
    if domain:
        warming = domain * (stage == 0)
        losses["domain/nll"] = against(companion.discriminator, model(batch.source.images), student, warming)
    return losses
