"""Score curves: means over seeds with standard deviation and single runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ducats.report.figures.style import LineStyle
from ducats.report.figures.summary_stats import MeanStd


@dataclass(frozen=True)
class ScoreCurve:
    """Scores in percent by x value.

    Args:
        label: name in the legend.
        stats: mean and deviation by x, ascending.
        scores: scores of all seeds by x.
    """

    label: str
    stats: Mapping[float, MeanStd]
    scores: Mapping[float, Sequence[float]]

    @classmethod
    def from_scores(cls, label: str, scores: Mapping[float, Sequence[float]]) -> "ScoreCurve":
        """Create a curve from the scores of all runs."""
        ascending = dict(sorted(scores.items()))
        return cls(label, {x: MeanStd.from_values(values) for x, values in ascending.items()}, ascending)

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return sum(len(values) for values in self.scores.values())

    def describe(self, x_name: str) -> str:
        """Describe the curve as text."""
        return f"{self.label}: " + ", ".join(
            f"{p.mean:.1f}% at {x_name} {x:g} ({len(self.scores[x])} seeds)" for x, p in self.stats.items()
        )


def plot_curve(axes: Axes, curve: ScoreCurve, line_style: LineStyle) -> None:
    """Plot the mean, a band of one deviation and each seed; draw a single point as a horizontal line."""
    x = list(curve.stats)
    mean = [point.mean for point in curve.stats.values()]
    for x_value, values in curve.scores.items():
        axes.plot(
            [x_value] * len(values),
            values,
            line_style.marker,
            color=line_style.colour,
            markersize=4,
            alpha=0.45,
            linestyle="",
        )
    axes.plot(x, mean, color=line_style.colour, marker=line_style.marker, markersize=6, label=curve.label)
    if len(x) == 1:
        axes.axhline(mean[0], color=line_style.colour, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.8)
    deviations = [point.std or 0.0 for point in curve.stats.values()]
    if any(deviations):
        low = [m - d for m, d in zip(mean, deviations, strict=True)]
        high = [m + d for m, d in zip(mean, deviations, strict=True)]
        axes.fill_between(x, low, high, color=line_style.colour, alpha=0.16, linewidth=0)
