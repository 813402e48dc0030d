"""Learning-rate schedules: factor of the initial learning rate by step."""

import math
from collections.abc import Callable, Mapping

LRSchedule = Callable[[int], float]


def inverse_decay(step: int, *, gain: float = 1e-3, power: float = 0.75) -> float:
    """Return ``(1 + gain * step) ** -power``, with raw steps as published.

    >>> round(inverse_decay(6850), 3)
    0.213
    """
    return float((1 + gain * step) ** -power)


def poly(step: int, *, horizon: int, power: float = 0.9) -> float:
    """Return ``(1 - step / horizon) ** power``, or 0 beyond the horizon.

    Args:
        horizon: step at which the factor reaches 0; published for segmentation: 1.25 times the steps.
        power: 1 is linear decay.

    >>> round(poly(50_000, horizon=62_500), 3), poly(0, horizon=100), poly(101, horizon=100)
    (0.235, 1.0, 0.0)
    """
    return float(max(0.0, 1 - step / horizon) ** power)


def cosine(step: int, *, horizon: int, floor: float = 0.0) -> float:
    """Return half a period of a cosine, from 1 down to ``floor`` at the horizon and beyond.

    Args:
        horizon: step at which the factor reaches its floor; by default the number of training steps.

    >>> [round(cosine(step, horizon=100, floor=0.1), 3) for step in (0, 50, 100, 101)]
    [1.0, 0.55, 0.1, 0.1]
    """
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))


def constant(_step: int) -> float:
    """Return 1."""
    return 1.0


def with_warmup(step: int, *, schedule: LRSchedule, warmup_steps: int) -> float:
    """Return the schedule's factor, times a linear ramp that reaches 1 at the last of the warm-up steps.

    >>> [with_warmup(step, schedule=constant, warmup_steps=4) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return schedule(step) * min(1.0, (step + 1) / warmup_steps)


SCHEDULES: Mapping[str, Callable[..., float]] = {
    "inverse_decay": inverse_decay,
    "poly": poly,
    "cosine": cosine,
    "constant": constant,
}
