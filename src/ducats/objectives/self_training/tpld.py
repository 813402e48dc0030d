"""TPLD: two-phase pseudo-label densification (Shin et al., ECCV 2020). A reconstruction, see its page."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
    reverse_gradient,
)
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_unlabelled
from ducats.objectives.self_training.output_space import OutputDiscriminator, require_segmentation
from ducats.objectives.self_training.pseudo_label_ops import (
    coarse_log_alpha,
    expand_class_values,
    log_probability_of,
    means_over_kept,
    stack_outputs,
)
from ducats.objectives.self_training.round_schedule import starting_round
from ducats.objectives.self_training.teacher import Teacher
from ducats.objectives.softmax import softmax

SCORE_TOLERANCE = 1e-5  # tolerance: interpolating between 1 and 1 may give slightly less than 1


class DensifyingTeacher(Teacher):
    """Teacher with dense pseudo-labels: spread to neighbours in phase 1, full images in phase 2.

    Args:
        rounds: number of rounds, each with a new teacher; the second half, rounded down, is phase 2.
        easy_fraction: fraction of the pool's images that count as easy in phase 2.
        hidden: channels of the discriminator's first layer; the other parameters are those of `Teacher`.
    """

    phase: Tensor  # 0 before the first round, then 1 or 2
    min_easy_confidence: Tensor  # minimum mean confidence of an easy image

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        warmup: float = 0.4,
        rounds: int = 4,
        portion: float = 0.2,
        growth: float = 0.05,
        max_portion: float = 0.5,
        easy_fraction: float = 0.5,
        hidden: int = 64,
    ) -> None:
        require_segmentation(context, "tpld")
        super().__init__(
            context, warmup=warmup, rounds=rounds, portion=portion, growth=growth, max_portion=max_portion
        )
        if not 0 < easy_fraction <= 1:
            raise ValueError(
                f"easy_fraction is a fraction of the images and must be in (0, 1], not {easy_fraction}"
            )
        self.easy_fraction = easy_fraction
        self.discriminator = OutputDiscriminator(context.classes, hidden)
        self.register_buffer("phase", torch.zeros(()))
        self.register_buffer("min_easy_confidence", torch.zeros(()))

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Copy the model, and compute the class thresholds and the threshold of easy images on the pool."""
        super().refresh(context, full_pass)
        round_number = starting_round(context, self.warmup, self.rounds)
        self.phase.fill_(2.0 if round_number > self.rounds - self.rounds // 2 else 1.0)
        confidences = torch.cat([mean_confidence(coarse_log_alpha(output)) for _, output in full_pass.pool()])
        count = max(1, round(self.easy_fraction * len(confidences)))
        self.min_easy_confidence.copy_(confidences.sort(descending=True).values[count - 1])


def mean_confidence(z: Tensor) -> Tensor:
    """Compute the mean confidence of each image: ``(N, C, h, w) -> (N,)``."""
    return z.softmax(1).amax(1).mean((1, 2))


def neighbour_votes(probability: Tensor, threshold: Tensor, radius: int) -> Tensor:
    """Compute the ratio of score to threshold per class; the highest is the pseudo-label if it is at least 1.

    A position that passes a threshold is scored by its own probabilities. At other positions, the score of
    the two most probable classes is the mean of the own probability and that of the passing positions in the
    window. It is 0 if there are none.

    Args:
        probability: ``(N, C, h, w)``.
        threshold: threshold per class, ``(C,)``; inf: never passes.
    """
    own_ratio = probability / expand_class_values(threshold, probability)
    passes = (own_ratio.amax(1, keepdim=True) >= 1).to(probability.dtype)
    side = 2 * radius + 1

    def window_mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, side, stride=1, padding=radius)

    passing_fraction = window_mean(passes)
    # Window sums have rounding errors where no neighbour passes; a single neighbour contributes 1 / side^2.
    has_passing_neighbour = passing_fraction > 0.5 / side**2
    mean = window_mean(probability * passes) / passing_fraction.clamp(min=0.5 / side**2)
    top = probability.topk(2, dim=1).indices
    is_top_two = torch.zeros_like(probability, dtype=torch.bool).scatter(1, top, True)
    score = (probability + mean) / 2 / expand_class_values(threshold, probability)
    return torch.where(passes > 0, own_ratio, torch.where(is_top_two & has_passing_neighbour, score, 0.0))


def tpld(
    model: ForwardFn,
    batch: Batch,
    teacher: DensifyingTeacher,
    *,
    nll: float = 1.0,
    beta: float = 0.8,
    reg: float = 0.1,
    radius: int = 2,
    domain: float = 0.001,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labels, and bootstrapped cross-entropy on densified pseudo-labels.

    Phase 1: confident pseudo-labels spread to neighbours. Phase 2: easy images are pseudo-labelled
    everywhere, and an adversarial loss adapts the class probabilities of hard images to those of easy ones.

    Args:
        nll: weight of the loss on pseudo-labels.
        beta: weight of the pseudo-label in that loss; the model's own prediction has weight 1 - beta.
        reg: weight of the regulariser of MRKLD.
        radius: radius of the window in which labels spread, in positions of the network's grid.
        domain: weight of the adversarial loss for the model.
    """
    if radius < 0 or not 0 <= beta <= 1:
        raise ValueError(f"radius must be at least 0 (got {radius}), and beta in [0, 1] (got {beta})")
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, label_maps = batch.target
    teacher_log_alpha, student = coarse_log_alpha(teacher.frozen_model(images)), model(images)
    probability, is_phase_two = teacher_log_alpha.softmax(1), teacher.phase == 2
    is_easy = (mean_confidence(teacher_log_alpha) >= teacher.min_easy_confidence)[:, None, None, None]
    # Interpolated probabilities sum to 1, so one of them is at least 1 / C at every pixel.
    full_score = probability * probability.shape[1]
    vote_score = neighbour_votes(probability, teacher.log_threshold.exp(), radius)
    score = torch.where(is_phase_two, torch.where(is_easy, full_score, 0.0), vote_score)
    classes = student.z.shape[1]

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p = z[:, :classes].log_softmax(1)
        best, label = z[:, classes:].detach().max(1)
        fit = -beta * log_probability_of(log_p, label) - (1 - beta) * log_p.amax(1)
        return fit, -log_p.mean(1), best >= 1 - SCORE_TOLERANCE

    fit, smooth = means_over_kept(stack_outputs(student, (), [score]), formula, label_maps, is_unlabelled)
    losses |= {"pseudo/nll": nll * fit, "pseudo/reg": reg * smooth}
    if domain:
        p = coarse_log_alpha(student).softmax(1)
        is_hard = ~is_easy & is_phase_two
        adversarial_input = p.detach() + domain * (p - p.detach()) * is_hard
        log_odds = teacher.discriminator(reverse_gradient(adversarial_input))
        losses["domain/nll"] = is_phase_two * _balanced_bce(log_odds, is_easy[:, 0])
    return losses


def _balanced_bce(log_odds: Tensor, is_first: Tensor) -> Tensor:
    """Compute the class-balanced binary cross-entropy; a group without members contributes 0."""
    losses = torch.where(is_first, F.softplus(-log_odds), F.softplus(log_odds)).mean((1, 2))
    member = is_first.flatten()
    group_means = [(losses * kind).sum() / kind.sum().clamp(min=1) for kind in (member, ~member)]
    return (group_means[0] + group_means[1]) / 2


TPLD_SPEC = ObjectiveSpec(tpld, DensifyingTeacher)
