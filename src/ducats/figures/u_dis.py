"""Figure 3a: log U_dis of source and target before the first labels and at the end, and their AUROC."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.figures.drawing import Asked, Drawing
from ducats.figures.points import SOURCE, TARGET, Array, auroc
from ducats.figures.runs import RunLike, Runs, snapshots_of, when
from ducats.snapshot_files import Snapshot

BINS = 40


@dataclass(frozen=True)
class Domains:
    """Log U_dis of source and target in a snapshot's random sample."""

    title: str
    source: Array
    target: Array

    @property
    def auroc(self) -> float | None:
        """Probability that a target sample has higher U_dis than a source sample; None without both."""
        return auroc(self.source, self.target)


def domains(run: RunLike) -> list[Domains]:
    """Return the first and the last snapshot; only one if they are the same."""
    found = snapshots_of(run)
    ends = [found[0], found[-1]] if len(found) > 1 else found
    return [_of(snapshot, run) for snapshot in ends]


def _of(snapshot: Snapshot, run: RunLike) -> Domains:
    sample = snapshot.sampled
    values = [snapshot.log_u_dis[sample & (snapshot.is_target == target)] for target in (False, True)]
    spent = "before any label" if snapshot.round == 1 else when(snapshot)
    return Domains(f"{run.method}, seed {run.seed}: {spent}", values[0], values[1])


def u_dis(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare a row per run: histograms of source and target with medians and AUROC."""
    rows = [domains(run) for run in runs]
    finite = np.concatenate([v[np.isfinite(v)] for row in rows for d in row for v in (d.source, d.target)])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 0.0)
    edges = np.linspace(low, max(high, low + 1e-3), BINS + 1).tolist()
    columns = max(len(row) for row in rows)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
        for line, row in zip(grid, rows, strict=True):
            for axes, both in zip(line, row, strict=False):
                _histograms(axes, both, edges)
            for axes in line[len(row) :]:
                axes.set_visible(False)
            line[0].set_ylabel("density, 1/nat")
        for axes in grid[-1]:
            axes.set_xlabel("ln U_dis (U_dis in nats)")

    title = "Distribution uncertainty on source and target"
    told = "; ".join(f"{d.title}, AUROC {_number(d.auroc)}" for row in rows for d in row)
    return Drawing(draw, (3.5 * columns, 2.5 * len(rows) + 0.2), title, f"{title}. {told}.")


def _histograms(axes: Axes, both: Domains, edges: Sequence[float]) -> None:
    for values, colour, who, dash in (
        (both.source, SOURCE, "source", "solid"),
        (both.target, TARGET, "target", "dashed"),
    ):
        some = values[np.isfinite(values)]
        if not len(some):
            continue
        median = float(np.median(values))
        label = f"{who}: n={len(values):,}, median {median:.2f}"
        axes.hist(some, edges, density=True, color=colour, histtype="stepfilled", alpha=0.35, linewidth=0)
        axes.hist(some, edges, density=True, color=colour, histtype="step", linewidth=1.2, label=label)
        axes.axvline(median, ymax=0.66, color=colour, linewidth=1.2, linestyle=dash)
    axes.set_title(both.title)
    auroc = f"AUROC of target against source: {_number(both.auroc)}"
    legend = axes.legend(frameon=False, fontsize=8, title=auroc, title_fontsize=8, loc="upper left")
    legend.set_alignment("left")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.6)  # space for the legend


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
