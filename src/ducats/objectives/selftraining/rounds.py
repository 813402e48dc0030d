"""When a round of self-training begins, in shares of the training."""

import math

from ducats.objectives.companion import Moment


def epoch_of(share: float, epochs: int) -> int:
    """The whole epoch nearest to a share of a training.

    >>> epoch_of(0.5, 5), epoch_of(0.25, 50)
    (3, 13)
    """
    return math.floor(share * epochs + 0.5)


def begins(moment: Moment, warmup: float, rounds: int) -> int:
    """The number of the round that begins now, from 1; 0 if none does.

    What is left of the training after its warm-up is cut into rounds of about the same length. In a training
    that is too short for all of them, of those that begin together the last one does.

    >>> [begins(Moment(epoch, 10, 0, 0), warmup=0.4, rounds=3) for epoch in range(10)]
    [0, 0, 0, 0, 1, 0, 2, 0, 3, 0]
    """
    found = 0
    for number in range(rounds):
        if epoch_of(warmup + (1 - warmup) * number / rounds, moment.epochs) == moment.epoch:
            found = number + 1
    return found


def check_rounds(warmup: float, rounds: int) -> None:
    """Refuse a self-training that has no room."""
    if not 0 <= warmup < 1:
        raise ValueError(
            f"warmup must be at least 0 and below 1, not {warmup}: it is a share of the training"
        )
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}: one teacher at the least")
