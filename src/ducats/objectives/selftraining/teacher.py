"""Teacher of a self-training round, with class-balanced confidence thresholds."""

import math

import torch
from torch import Tensor

from ducats.objectives.companion import Beside, Companion, Look, Moment, Still
from ducats.objectives.selftraining.rounds import begins, check_rounds
from ducats.objectives.selftraining.stacked import evident

# Certainty is -ln(1 - p), which separates confidences of 0.99 and 0.9999. A bin covers 1 % of 1 - p, which is
# the resolution of the thresholds. The last bin holds all confidences above 1 - e^-20.
BINS, WIDTH = 2000, 0.01


class Teacher(Companion):
    """Copy of the model, updated in each round, with one confidence threshold per class.

    Of the positions predicted as a class, its threshold passes the given portion, the most confident ones.
    Before the first round no position passes.

    Args:
        warmup: fraction of the training before the first round.
        rounds: number of rounds, each with a new teacher.
        portion: fraction of each class's positions that passes in the first round.
        growth: increase of the portion per round.
        most: maximum portion.
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
                raise ValueError(f"{name} is a fraction and must be in (0, 1], not {value}")
        self.warmup, self.rounds = warmup, rounds
        self.portion, self.growth, self.most = portion, growth, most
        self.still = Still(beside.model, beside.autocast)
        self.register_buffer("log_threshold", torch.full((beside.classes,), torch.inf))

    def due(self, moment: Moment) -> bool:
        """Whether a round starts now."""
        return begins(moment, self.warmup, self.rounds) > 0

    def refresh(self, moment: Moment, look: Look) -> None:
        """Copy the model, and compute the threshold of each class on the pool."""
        number = begins(moment, self.warmup, self.rounds)
        self.still.follow()
        classes = len(self.log_threshold)
        counts = torch.zeros(classes, BINS, dtype=torch.long, device=self.log_threshold.device)
        for _, output in look.pool():
            counts += certainties(evident(output))
        portion = max(0.0, min(self.most, self.portion + self.growth * (number - 1)))
        self.log_threshold.copy_(thresholds(counts.cpu(), portion))


def certainties(z: Tensor) -> Tensor:
    """Compute a histogram of certainty per predicted class, ``(C, BINS)``, from log alpha ``(N, C, ...)``."""
    classes = z.shape[1]
    winner = z.argmax(1)
    others = z.scatter(1, winner[:, None], -torch.inf).logsumexp(1)
    place = ((z.logsumexp(1) - others) / WIDTH).clamp(0, BINS - 1).long()
    return torch.bincount((winner * BINS + place).flatten(), minlength=classes * BINS).view(classes, BINS)


def thresholds(counts: Tensor, portion: float) -> Tensor:
    """Return the log confidence reached by a portion of each class's positions; inf for classes without any.

    Args:
        counts: ``(C, BINS)``, see `certainties`.
        portion: fraction of each class's positions, rounded up to whole bins.
    """
    classes = len(counts)
    from_top = counts.flip(1).cumsum(1)
    total = from_top[:, -1]
    enough = from_top >= (portion * total.double()).ceil().clamp(min=1)[:, None]
    lower = (BINS - 1 - enough.int().argmax(1)).double() * WIDTH
    # The most probable class has a probability of at least 1 / C.
    log_threshold = torch.log1p(-torch.exp(-lower)).clamp(min=-math.log(classes))
    return torch.where(total > 0, log_threshold, torch.inf).float()
