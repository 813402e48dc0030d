"""Figure 3a: log U_dis of source and target before the first labels and at the end, and their AUROC."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.points import SOURCE_COLOUR, TARGET_COLOUR, auroc
from ducats.report.figures.runs import RunSequence, describe_time, require_snapshots
from ducats.report.run_reader import Run
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.npz_columns import AnyArray

N_HISTOGRAM_BINS = 40


@dataclass(frozen=True)
class DomainUncertainties:
    """Log U_dis of source and target in a snapshot's random sample."""

    title: str
    source: AnyArray
    target: AnyArray

    @property
    def auroc(self) -> float | None:
        """Probability that a target sample has higher U_dis than a source sample; None without both."""
        return auroc(self.source, self.target)


def domain_uncertainties(run: Run) -> list[DomainUncertainties]:
    """Return the first and the last snapshot; only one if they are the same."""
    run_snapshots = require_snapshots(run)
    first_and_last = [run_snapshots[0], run_snapshots[-1]] if len(run_snapshots) > 1 else run_snapshots
    return [_domain_uncertainties(snapshot, run) for snapshot in first_and_last]


def _domain_uncertainties(snapshot: Snapshot, run: Run) -> DomainUncertainties:
    sample = snapshot.sampled
    values = [snapshot.log_u_dis[sample & (snapshot.is_target == target)] for target in (False, True)]
    time_text = "before any label" if snapshot.round == 1 else describe_time(snapshot)
    return DomainUncertainties(f"{run.method}, seed {run.seed}: {time_text}", values[0], values[1])


def prepare_u_dis(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare a row per run: histograms of source and target with medians and AUROC."""
    rows = [domain_uncertainties(run) for run in runs]
    finite = np.concatenate([v[np.isfinite(v)] for row in rows for d in row for v in (d.source, d.target)])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 0.0)
    edges = np.linspace(low, max(high, low + 1e-3), N_HISTOGRAM_BINS + 1).tolist()
    columns = max(len(row) for row in rows)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
        for axes_row, row in zip(grid, rows, strict=True):
            for axes, uncertainties in zip(axes_row, row, strict=False):
                _draw_histograms(axes, uncertainties, edges)
            for axes in axes_row[len(row) :]:
                axes.set_visible(False)
            axes_row[0].set_ylabel("density, 1/nat")
        for axes in grid[-1]:
            axes.set_xlabel("ln U_dis (U_dis in nats)")

    title = "Distribution uncertainty on source and target"
    summary = "; ".join(f"{d.title}, AUROC {_format_auroc(d.auroc)}" for row in rows for d in row)
    return PreparedFigure(draw, (3.5 * columns, 2.5 * len(rows) + 0.2), title, f"{title}. {summary}.")


def _draw_histograms(axes: Axes, uncertainties: DomainUncertainties, edges: Sequence[float]) -> None:
    for values, colour, domain_name, line_dash in (
        (uncertainties.source, SOURCE_COLOUR, "source", "solid"),
        (uncertainties.target, TARGET_COLOUR, "target", "dashed"),
    ):
        finite_values = values[np.isfinite(values)]
        if not len(finite_values):
            continue
        median = float(np.median(values))
        label = f"{domain_name}: n={len(values):,}, median {median:.2f}"
        axes.hist(
            finite_values, edges, density=True, color=colour, histtype="stepfilled", alpha=0.35, linewidth=0
        )
        axes.hist(
            finite_values, edges, density=True, color=colour, histtype="step", linewidth=1.2, label=label
        )
        axes.axvline(median, ymax=0.66, color=colour, linewidth=1.2, linestyle=line_dash)
    axes.set_title(uncertainties.title)
    auroc_text = f"AUROC of target against source: {_format_auroc(uncertainties.auroc)}"
    legend = axes.legend(frameon=False, fontsize=8, title=auroc_text, title_fontsize=8, loc="upper left")
    legend.set_alignment("left")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.6)  # space for the legend


def _format_auroc(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
