"""Selected samples of each round among pool and source, in the first two principal components."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure, make_panels
from ducats.report.figures.points import (
    SELECTED_COLOUR,
    SOURCE_COLOUR,
    TARGET_COLOUR,
    legend_marker,
    scatter_highlighted,
    scatter_rasterised,
    scatter_rings,
)
from ducats.report.figures.runs import RunSequence, require_one_run, require_round_snapshots
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError

LEGEND_STYLES = {  # marker, fill and edge
    "source": ("s", SOURCE_COLOUR, "none"),
    "target": ("o", TARGET_COLOUR, "none"),
    "labelled before": ("o", "none", SELECTED_COLOUR),
    "selected": ("D", SELECTED_COLOUR, "none"),
}


def prepare_features(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare one panel per round; each round has its own components, so the axes differ."""
    run = require_one_run(runs, "features")
    round_snapshots = require_round_snapshots(run, options.round)
    if any(snapshot.features.shape[1] < 2 for snapshot in round_snapshots):
        raise UserError(f"{run.folder} has no features to draw: its model returns none")
    columns = min(3, len(round_snapshots))

    def draw(figure: Figure) -> None:
        panels = make_panels(figure, len(round_snapshots), columns)
        for axes, snapshot in zip(panels, round_snapshots, strict=True):
            _draw_panel(axes, snapshot)
        handles = [
            legend_marker(name, marker, markersize=5, markerfacecolor=fill, markeredgecolor=edge)
            for name, (marker, fill, edge) in LEGEND_STYLES.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)

    title = "Selected samples among pool and source"
    summary = "; ".join(
        f"round {snapshot.round}: {int(snapshot.picked[snapshot.feature_rows].sum()):,} of "
        f"{int(snapshot.picked.sum()):,} selected samples shown, two components explain "
        f"{snapshot.explained_variance_ratio[:2].sum():.0%} of the variance"
        for snapshot in round_snapshots
    )
    size = (max(2.7 * columns + 0.2, 4.2), 2.7 * -(-len(round_snapshots) // columns) + 0.5)
    return PreparedFigure(draw, size, title, f"{title}. {summary}.")


def _draw_panel(axes: Axes, snapshot: Snapshot) -> None:
    rows = snapshot.feature_rows
    x, y = (snapshot.features[:, component].astype(np.float32) for component in (0, 1))
    target, picked, labelled = snapshot.is_target[rows], snapshot.picked[rows], snapshot.is_labelled[rows]
    scatter_rasterised(axes, x[~target], y[~target], SOURCE_COLOUR, "s", 6)
    is_candidate = target & ~picked & ~labelled
    scatter_rasterised(axes, x[is_candidate], y[is_candidate], TARGET_COLOUR, "o", 6)
    scatter_rings(axes, x[labelled], y[labelled], 18)
    scatter_highlighted(axes, x[picked], y[picked], marker="D", size=22)
    n_shown, n_selected = int(picked.sum()), int(snapshot.picked.sum())
    selected_text = (
        f"{n_selected:,} selected" if n_shown == n_selected else f"{n_shown:,} of {n_selected:,} selected"
    )
    counts = f"{int((~target).sum()):,} source, {int(target.sum()):,} target"
    axes.set_title(f"round {snapshot.round}: {selected_text}\n{counts}", fontsize=9)
    axes.set_xlabel(f"component 1 ({snapshot.explained_variance_ratio[0]:.0%} of variance)", fontsize=9)
    axes.set_ylabel(f"component 2 ({snapshot.explained_variance_ratio[1]:.0%})", fontsize=9)
    axes.tick_params(labelsize=8)
