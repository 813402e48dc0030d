"""TPLD: pseudo-labels made dense in two phases (Shin et al., ECCV 2020). A reconstruction, see its page."""

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

ROUNDING = 1e-5  # a score that is interpolated between 1 and 1 may come out below


class Densifier(Teacher):
    """A teacher whose labels spread to neighbours, and in the second half of its rounds fill easy images.

    Args:
        beside: what it is made for.
        warmup: share of the training before the first round.
        rounds: how many teachers there are; the second half of them, rounded down, is phase 2.
        portion: of each class's positions that is labelled in the first round, before it spreads.
        growth: how much more in each round after it.
        most: what is labelled at most.
        easy: share of the pool's images that are easy in phase 2.
        hidden: channels of the discriminator's first layer.
    """

    phase: Tensor  # 0 before the first round, then 1 or 2
    least: Tensor  # mean confidence of an easy image

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
            raise ValueError(f"easy must be above 0 and at most 1, not {easy}: it is a share of the images")
        self.easy = easy
        self.discriminator = OutputDiscriminator(beside.classes, hidden)
        self.register_buffer("phase", torch.zeros(()))
        self.register_buffer("least", torch.zeros(()))

    def refresh(self, moment: Moment, look: Look) -> None:
        """Become what the model now is; find the thresholds, and which images are easy."""
        super().refresh(moment, look)
        number = begins(moment, self.warmup, self.rounds)
        self.phase.fill_(2.0 if number > self.rounds - self.rounds // 2 else 1.0)
        sure = torch.cat([confidence(evident(output)) for _, output in look.pool()])
        count = max(1, round(self.easy * len(sure)))
        self.least.copy_(sure.sort(descending=True).values[count - 1])


def confidence(z: Tensor) -> Tensor:
    """Mean confidence of each image: ``(N, C, h, w) -> (N,)``."""
    return z.softmax(1).amax(1).mean((1, 2))


def voted(probability: Tensor, threshold: Tensor, radius: int) -> Tensor:
    """Ratio of score and threshold for each class: where the highest is 1 or more, it is the pseudo-label.

    A position that passes by itself keeps its own probabilities. Any other is scored, for its two most
    probable classes, by the mean of its own probability and that of the passing positions around it; it
    fails if there are none.

    Args:
        probability: ``(N, C, h, w)``.
        threshold: of each class, ``(C,)``; inf: never.
        radius: of the window around a position.
    """
    own = probability / by_class(threshold, probability)
    passes = (own.amax(1, keepdim=True) >= 1).to(probability.dtype)
    side = 2 * radius + 1

    def around(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, side, stride=1, padding=radius)

    share = around(passes)
    # Sums over windows leave rounding dust where no neighbour passes: one of them is 1 / side^2.
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
    """Cross-entropy where labels are known, and bootstrapped on a teacher's labels that were made denser.

    Phase 1: confident labels spread to neighbours. Phase 2: easy images are labelled everywhere, hard ones
    are trained to look like easy ones to a discriminator of their class probabilities.

    Args:
        model: images to log alpha.
        batch: the step's data.
        teacher: the companion.
        nll: weight of the loss on pseudo-labels.
        beta: weight of a pseudo-label in it; the model's own prediction has the rest (bootstrapping).
        reg: weight of the regulariser, as MRKLD has it.
        radius: of the window in which labels spread, in positions of the network's grid.
        domain: weight of the adversary in the model's own training.
        source: weight of the source's cross-entropy.
        target: weight of the labelled target's cross-entropy.
    """
    if radius < 0 or not 0 <= beta <= 1:
        raise ValueError(f"radius must be at least 0, and beta between 0 and 1, not {radius} and {beta}")
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, maps = batch.target
    said, student = evident(teacher.still(images)), model(images)
    probability, second = said.softmax(1), teacher.phase == 2
    easy = (confidence(said) >= teacher.least)[:, None, None, None]
    # Interpolated probabilities still add up to 1, so one of them reaches 1 / C at every pixel.
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
    """Binary cross-entropy, both kinds weighing the same; nothing of a kind that is not there."""
    each = torch.where(first, F.softplus(-odds), F.softplus(odds)).mean((1, 2))
    member = first.flatten()
    sides = [(each * kind).sum() / kind.sum().clamp(min=1) for kind in (member, ~member)]
    return (sides[0] + sides[1]) / 2
