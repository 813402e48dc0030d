"""Learning rate over steps, as a factor of the first."""

from collections.abc import Callable, Mapping

Schedule = Callable[[int], float]


def inverse_decay(step: int, *, gain: float = 1e-3, power: float = 0.75) -> float:
    """``(1 + gain * step) ** -power``, on raw steps as published.

    >>> round(inverse_decay(6850), 3)
    0.213
    """
    return float((1 + gain * step) ** -power)


def poly(step: int, *, horizon: int, power: float = 0.9) -> float:
    """``(1 - step / horizon) ** power``, and 0 beyond.

    Args:
        step: steps done.
        horizon: where it reaches 0; published for segmentation: a quarter beyond the end of the training.
        power: 1 is a straight line.

    >>> round(poly(50_000, horizon=62_500), 3), poly(0, horizon=100), poly(101, horizon=100)
    (0.235, 1.0, 0.0)
    """
    return float(max(0.0, 1 - step / horizon) ** power)


def constant(_step: int) -> float:
    """Never change."""
    return 1.0


SCHEDULES: Mapping[str, Callable[..., float]] = {
    "inverse_decay": inverse_decay,
    "poly": poly,
    "constant": constant,
}
