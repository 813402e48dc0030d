"""TPLD: two-phase pseudo-label densification (Shin et al., ECCV 2020). A reconstruction, see its page."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import Beside, Look, Moment, reverse_gradient
from ducats.objectives.selftraining.output_space import OutputDiscriminator, check_pixels
from ducats.objectives.selftraining.rounds import begins
from ducats.objectives.selftraining.stacked import at, by_class, evident, over_kept, stacked
from ducats.objectives.selftraining.teacher import Teacher
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import unlabelled

ROUNDING = 1e-5  # tolerance: interpolating between 1 and 1 may give slightly less than 1


class Densifier(Teacher):
    """Teacher with dense pseudo-labels: spread to neighbours in phase 1, full images in phase 2.

    Args:
        warmup: fraction of the training before the first round.
        rounds: number of rounds, each with a new teacher; the second half, rounded down, is phase 2.
        portion: fraction of each class's positions that is pseudo-labelled in round 1, before spreading.
        growth: increase of the portion per round.
        most: maximum portion.
        easy: fraction of the pool's images that count as easy in phase 2.
        hidden: channels of the discriminator's first layer.
    """

    phase: Tensor  # 0 before the first round, then 1 or 2
    least: Tensor  # minimum mean confidence of an easy image

    def __init__(
        self,
        beside: Beside,
        *,
        warmup: float = 0.4,
        rounds: int = 4,
        portion: float = 0.2,
        growth: float = 0.05,
        most: float = 0.5,
        easy: float = 0.5,
        hidden: int = 64,
    ) -> None:
        check_pixels(beside, "tpld")
        super().__init__(beside, warmup=warmup, rounds=rounds, portion=portion, growth=growth, most=most)
        if not 0 < easy <= 1:
            raise ValueError(f"easy is a fraction of the images and must be in (0, 1], not {easy}")
        self.easy = easy
        self.discriminator = OutputDiscriminator(beside.classes, hidden)
        self.register_buffer("phase", torch.zeros(()))
        self.register_buffer("least", torch.zeros(()))

    def refresh(self, moment: Moment, look: Look) -> None:
        """Copy the model, and compute the class thresholds and the threshold of easy images on the pool."""
        super().refresh(moment, look)
        number = begins(moment, self.warmup, self.rounds)
        self.phase.fill_(2.0 if number > self.rounds - self.rounds // 2 else 1.0)
        sure = torch.cat([confidence(evident(output)) for _, output in look.pool()])
        count = max(1, round(self.easy * len(sure)))
        self.least.copy_(sure.sort(descending=True).values[count - 1])


def confidence(z: Tensor) -> Tensor:
    """Compute the mean confidence of each image: ``(N, C, h, w) -> (N,)``."""
    return z.softmax(1).amax(1).mean((1, 2))


def voted(probability: Tensor, threshold: Tensor, radius: int) -> Tensor:
    """Compute the ratio of score to threshold per class; the highest is the pseudo-label if it is at least 1.

    A position that passes a threshold is scored by its own probabilities. At other positions, the score of
    the two most probable classes is the mean of the own probability and that of the passing positions in the
    window. It is 0 if there are none.

    Args:
        probability: ``(N, C, h, w)``.
        threshold: threshold per class, ``(C,)``; inf: never passes.
        radius: radius of the window.
    """
    own = probability / by_class(threshold, probability)
    passes = (own.amax(1, keepdim=True) >= 1).to(probability.dtype)
    side = 2 * radius + 1

    def around(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, side, stride=1, padding=radius)

    share = around(passes)
    # Window sums have rounding errors where no neighbour passes; a single neighbour contributes 1 / side^2.
    near = share > 0.5 / side**2
    mean = around(probability * passes) / share.clamp(min=0.5 / side**2)
    top = probability.topk(2, dim=1).indices
    rival = torch.zeros_like(probability, dtype=torch.bool).scatter(1, top, True)
    score = (probability + mean) / 2 / by_class(threshold, probability)
    return torch.where(passes > 0, own, torch.where(rival & near, score, 0.0))


def tpld(
    model: Forward,
    batch: Batch,
    teacher: Densifier,
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
        source: weight of the cross-entropy on source data.
        target: weight of the cross-entropy on labelled target data.
    """
    if radius < 0 or not 0 <= beta <= 1:
        raise ValueError(f"radius must be at least 0 (got {radius}), and beta in [0, 1] (got {beta})")
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, maps = batch.target
    said, student = evident(teacher.still(images)), model(images)
    probability, second = said.softmax(1), teacher.phase == 2
    easy = (confidence(said) >= teacher.least)[:, None, None, None]
    # Interpolated probabilities sum to 1, so one of them is at least 1 / C at every pixel.
    full = probability * probability.shape[1]
    by_neighbours = voted(probability, teacher.log_threshold.exp(), radius)
    score = torch.where(second, torch.where(easy, full, 0.0), by_neighbours)
    classes = student.z.shape[1]

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        log_p = z[:, :classes].log_softmax(1)
        best, label = z[:, classes:].detach().max(1)
        fit = -beta * at(log_p, label) - (1 - beta) * log_p.amax(1)
        return fit, -log_p.mean(1), best >= 1 - ROUNDING

    fit, smooth = over_kept(stacked(student, (), [score]), formula, maps, unlabelled)
    losses |= {"pseudo/nll": nll * fit, "pseudo/reg": reg * smooth}
    if domain:
        p = evident(student).softmax(1)
        hard = ~easy & second
        fooled = p.detach() + domain * (p - p.detach()) * hard
        odds = teacher.discriminator(reverse_gradient(fooled))
        losses["domain/nll"] = second * _two_kinds(odds, easy[:, 0])
    return losses


def _two_kinds(odds: Tensor, first: Tensor) -> Tensor:
    """Compute the class-balanced binary cross-entropy; a group without members contributes 0."""
    each = torch.where(first, F.softplus(-odds), F.softplus(odds)).mean((1, 2))
    member = first.flatten()
    sides = [(each * kind).sum() / kind.sum().clamp(min=1) for kind in (member, ~member)]
    return (sides[0] + sides[1]) / 2
