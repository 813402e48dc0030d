"""Learning-rate schedules: factor of the initial learning rate by step."""

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


def constant(_step: int) -> float:
    """Return 1."""
    return 1.0


SCHEDULES: Mapping[str, Callable[..., float]] = {
    "inverse_decay": inverse_decay,
    "poly": poly,
    "constant": constant,
}
