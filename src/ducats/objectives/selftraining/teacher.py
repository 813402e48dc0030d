"""The teacher of a round, and how sure it must be of each class (class-balanced self-training)."""

import math

import torch
from torch import Tensor

from ducats.objectives.companion import Beside, Companion, Look, Moment, Still
from ducats.objectives.selftraining.rounds import begins, check_rounds
from ducats.objectives.selftraining.stacked import evident

# Certainty is -ln(1 - p): there, confidences of 0.99 and of 0.9999 lie apart. Each bin holds what differs by
# less than 1 % in 1 - p, so thresholds are quantiles up to that; the last bin holds all above 1 - e^-20.
BINS, WIDTH = 2000, 0.01


class Teacher(Companion):
    """A copy of the model, made anew in each round, and one threshold of confidence per class.

    A class's threshold lets pass the given portion of the positions that are predicted as that class, the
    most confident ones. Before the first round no position passes.

    Args:
        beside: what it is made for.
        warmup: share of the training before the first round.
        rounds: how many teachers there are, one after the other.
        portion: of each class's positions that passes in the first round.
        growth: how much more passes in each round after it.
        most: what passes at most.
    """

    log_threshold: Tensor  # (C,)

    def __init__(
        self,
        beside: Beside,
        *,
        warmup: float = 0.4,
        rounds: int = 4,
        portion: float = 0.2,
        growth: float = 0.05,
        most: float = 0.5,
    ) -> None:
        super().__init__()
        check_rounds(warmup, rounds)
        for name, value in (("portion", portion), ("most", most)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {value}: it is a share")
        self.warmup, self.rounds = warmup, rounds
        self.portion, self.growth, self.most = portion, growth, most
        self.still = Still(beside.model, beside.autocast)
        self.register_buffer("log_threshold", torch.full((beside.classes,), torch.inf))

    def due(self, moment: Moment) -> bool:
        """When a round begins."""
        return begins(moment, self.warmup, self.rounds) > 0

    def refresh(self, moment: Moment, look: Look) -> None:
        """Become what the model now is, and measure how sure it is of each class."""
        number = begins(moment, self.warmup, self.rounds)
        self.still.follow()
        classes = len(self.log_threshold)
        counts = torch.zeros(classes, BINS, dtype=torch.long, device=self.log_threshold.device)
        for _, output in look.pool():
            counts += certainties(evident(output))
        portion = max(0.0, min(self.most, self.portion + self.growth * (number - 1)))
        self.log_threshold.copy_(thresholds(counts.cpu(), portion))


def certainties(z: Tensor) -> Tensor:
    """How many positions are predicted as each class, with how much certainty: ``(C, BINS)``.

    Args:
        z: log alpha, ``(N, C, ...)``.
    """
    classes = z.shape[1]
    winner = z.argmax(1)
    others = z.scatter(1, winner[:, None], -torch.inf).logsumexp(1)
    place = ((z.logsumexp(1) - others) / WIDTH).clamp(0, BINS - 1).long()
    return torch.bincount((winner * BINS + place).flatten(), minlength=classes * BINS).view(classes, BINS)


def thresholds(counts: Tensor, portion: float) -> Tensor:
    """Logarithm of the confidence that a portion of each class's positions reaches; inf if it has none.

    Args:
        counts: ``(C, BINS)``, see `certainties`.
        portion: of each class; a bin passes as a whole.
    """
    classes = len(counts)
    from_top = counts.flip(1).cumsum(1)
    total = from_top[:, -1]
    enough = from_top >= (portion * total.double()).ceil().clamp(min=1)[:, None]
    lower = (BINS - 1 - enough.int().argmax(1)).double() * WIDTH
    # A most probable class has at least 1 / C, whatever the lower edge of its bin.
    log_threshold = torch.log1p(-torch.exp(-lower)).clamp(min=-math.log(classes))
    return torch.where(total > 0, log_threshold, torch.inf).float()
