"""Score curves: means over seeds with standard deviation and single runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ducats.figures.numbers import Spread
from ducats.figures.style import Look


@dataclass(frozen=True)
class Curve:
    """Scores in percent by x value.

    Args:
        label: name in the legend.
        points: mean and deviation by x, ascending.
        values: scores of all seeds by x.
    """

    label: str
    points: Mapping[float, Spread]
    values: Mapping[float, Sequence[float]]

    @classmethod
    def of(cls, label: str, values: Mapping[float, Sequence[float]]) -> "Curve":
        """Create a curve from the scores of all runs."""
        rising = dict(sorted(values.items()))
        return cls(label, {x: Spread.of(some) for x, some in rising.items()}, rising)

    @property
    def count(self) -> int:
        """Number of runs."""
        return sum(len(some) for some in self.values.values())

    def told(self, what: str) -> str:
        """Describe the curve as text."""
        return f"{self.label}: " + ", ".join(
            f"{p.mean:.1f}% at {what} {x:g} ({len(self.values[x])} seeds)" for x, p in self.points.items()
        )


def plot(axes: Axes, curve: Curve, look: Look) -> None:
    """Plot the mean, a band of one deviation and each seed; draw a single point as a horizontal line."""
    x = list(curve.points)
    mean = [point.mean for point in curve.points.values()]
    for place, values in curve.values.items():
        axes.plot(
            [place] * len(values),
            values,
            look.marker,
            color=look.colour,
            markersize=4,
            alpha=0.45,
            linestyle="",
        )
    axes.plot(x, mean, color=look.colour, marker=look.marker, markersize=6, label=curve.label)
    if len(x) == 1:
        axes.axhline(mean[0], color=look.colour, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.8)
    deviations = [point.deviation or 0.0 for point in curve.points.values()]
    if any(deviations):
        low = [m - d for m, d in zip(mean, deviations, strict=True)]
        high = [m + d for m, d in zip(mean, deviations, strict=True)]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0)
