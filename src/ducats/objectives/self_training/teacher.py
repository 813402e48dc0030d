"""Teacher of a self-training round, with class-balanced confidence thresholds."""

import math

import torch
from torch import Tensor

from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    FrozenCopy,
    FullPass,
    RefreshContext,
)
from ducats.objectives.self_training.pseudo_label_ops import coarse_log_alpha
from ducats.objectives.self_training.round_schedule import check_round_schedule, starting_round

# Certainty is -ln(1 - p), which separates confidences of 0.99 and 0.9999. A bin covers 1 % of 1 - p, which is
# the resolution of the thresholds. The last bin holds all confidences above 1 - e^-20.
N_CERTAINTY_BINS, CERTAINTY_BIN_WIDTH = 2000, 0.01


class Teacher(AuxiliaryModule):
    """Copy of the model, updated in each round, with one confidence threshold per class.

    Of the positions predicted as a class, its threshold passes the given portion, the most confident ones.
    Before the first round no position passes.

    Args:
        warmup: fraction of the training before the first round.
        rounds: number of rounds, each with a new teacher.
        portion: fraction of each class's positions that passes in the first round.
        growth: increase of the portion per round.
        max_portion: maximum portion.
    """

    log_threshold: Tensor  # (C,)

    def __init__(
        self,
        context: AuxiliaryContext,
        *,
        warmup: float = 0.4,
        rounds: int = 4,
        portion: float = 0.2,
        growth: float = 0.05,
        max_portion: float = 0.5,
    ) -> None:
        super().__init__()
        check_round_schedule(warmup, rounds)
        for name, value in (("portion", portion), ("max_portion", max_portion)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} is a fraction and must be in (0, 1], not {value}")
        self.warmup, self.rounds = warmup, rounds
        self.portion, self.growth, self.max_portion = portion, growth, max_portion
        self.frozen_model = FrozenCopy(context.model, context.autocast_dtype)
        self.register_buffer("log_threshold", torch.full((context.classes,), torch.inf))

    def is_due(self, context: RefreshContext) -> bool:
        """Whether a round starts now."""
        return starting_round(context, self.warmup, self.rounds) > 0

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Copy the model, and compute the threshold of each class on the pool."""
        round_number = starting_round(context, self.warmup, self.rounds)
        self.frozen_model.ema_update()
        classes = len(self.log_threshold)
        counts = torch.zeros(classes, N_CERTAINTY_BINS, dtype=torch.long, device=self.log_threshold.device)
        for _, output in full_pass.pool():
            counts += certainty_histogram(coarse_log_alpha(output))
        portion = max(0.0, min(self.max_portion, self.portion + self.growth * (round_number - 1)))
        self.log_threshold.copy_(log_thresholds(counts.cpu(), portion))


def certainty_histogram(z: Tensor) -> Tensor:
    """Compute histograms of certainty by predicted class: ``(N, C, ...) -> (C, N_CERTAINTY_BINS)``."""
    classes = z.shape[1]
    predicted = z.argmax(1)
    others = z.scatter(1, predicted[:, None], -torch.inf).logsumexp(1)
    bin_index = ((z.logsumexp(1) - others) / CERTAINTY_BIN_WIDTH).clamp(0, N_CERTAINTY_BINS - 1).long()
    return torch.bincount(
        (predicted * N_CERTAINTY_BINS + bin_index).flatten(), minlength=classes * N_CERTAINTY_BINS
    ).view(classes, N_CERTAINTY_BINS)


def log_thresholds(counts: Tensor, portion: float) -> Tensor:
    """Return the log confidence reached by a portion of each class's positions; inf for classes without any.

    Args:
        counts: ``(C, N_CERTAINTY_BINS)``, see `certainty_histogram`.
        portion: fraction of each class's positions, rounded up to whole bins.
    """
    classes = len(counts)
    from_top = counts.flip(1).cumsum(1)
    total = from_top[:, -1]
    is_reached = from_top >= (portion * total.double()).ceil().clamp(min=1)[:, None]
    lower_edge = (N_CERTAINTY_BINS - 1 - is_reached.int().argmax(1)).double() * CERTAINTY_BIN_WIDTH
    # The most probable class has a probability of at least 1 / C.
    log_threshold = torch.log1p(-torch.exp(-lower_edge)).clamp(min=-math.log(classes))
    return torch.where(total > 0, log_threshold, torch.inf).float()
