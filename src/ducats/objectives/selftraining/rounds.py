"""Schedule of self-training rounds, in fractions of the training."""

import math

from ducats.objectives.companion import Moment


def epoch_of(share: float, epochs: int) -> int:
    """Return the epoch nearest to a fraction of the training.

    >>> epoch_of(0.5, 5), epoch_of(0.25, 50)
    (3, 13)
    """
    return math.floor(share * epochs + 0.5)


def begins(moment: Moment, warmup: float, rounds: int) -> int:
    """Return the number of the round that starts now, from 1; 0 if none does.

    The training after the warm-up is divided into rounds of about equal length. If it is too short for all of
    them, only the last of those that would start at the same epoch starts.

    >>> [begins(Moment(epoch, 10, 0, 0), warmup=0.4, rounds=3) for epoch in range(10)]
    [0, 0, 0, 0, 1, 0, 2, 0, 3, 0]
    """
    found = 0
    for number in range(rounds):
        if epoch_of(warmup + (1 - warmup) * number / rounds, moment.epochs) == moment.epoch:
            found = number + 1
    return found


def check_rounds(warmup: float, rounds: int) -> None:
    """Raise if ``warmup`` or ``rounds`` is out of range."""
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a fraction of the training and must be in [0, 1), not {warmup}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}")
