"""Schedule of self-training rounds, in fractions of the training."""

import math

from ducats.objectives.auxiliary import RefreshContext


def nearest_epoch(fraction: float, epochs: int) -> int:
    """Return the epoch nearest to a fraction of the training.

    >>> nearest_epoch(0.5, 5), nearest_epoch(0.25, 50)
    (3, 13)
    """
    return math.floor(fraction * epochs + 0.5)


def starting_round(context: RefreshContext, warmup: float, rounds: int) -> int:
    """Return the number of the round that starts now, from 1; 0 if none does.

    The training after the warm-up is divided into rounds of about equal length. If it is too short for all of
    them, only the last of those that would start at the same epoch starts.

    >>> [starting_round(RefreshContext(epoch, 10, 0, 0, 0), warmup=0.4, rounds=3) for epoch in range(10)]
    [0, 0, 0, 0, 1, 0, 2, 0, 3, 0]
    """
    round_number = 0
    for number in range(rounds):
        if nearest_epoch(warmup + (1 - warmup) * number / rounds, context.epochs) == context.epochs_done:
            round_number = number + 1
    return round_number


def check_round_schedule(warmup: float, rounds: int) -> None:
    """Raise if ``warmup`` or ``rounds`` is out of range."""
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a fraction of the training and must be in [0, 1), not {warmup}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
