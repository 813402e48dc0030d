"""Learning rate over steps, as a factor of the first."""

from collections.abc import Callable, Mapping

Schedule = Callable[[int], float]


def inverse_decay(step: int, *, gain: float = 1e-3, power: float = 0.75) -> float:
    """``(1 + gain * step) ** -power``, on raw steps as published.

    >>> round(inverse_decay(6850), 3)
    0.213
    """
    return float((1 + gain * step) ** -power)


def constant(_step: int) -> float:
    """Never change."""
    return 1.0


SCHEDULES: Mapping[str, Callable[..., float]] = {"inverse_decay": inverse_decay, "constant": constant}
