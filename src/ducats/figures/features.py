"""Selected samples of each round among pool and source, in the first two principal components."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing, panels
from ducats.figures.points import PICKED, SOURCE, TARGET, marked, ringed, scatter
from ducats.figures.runs import Runs, only, questions_of
from ducats.snapshot_files import Snapshot

LOOKS = {  # marker and colour
    "source": ("s", SOURCE),
    "target": ("o", TARGET),
    "labelled before": ("o", "none"),
    "selected": ("D", PICKED),
}


def features(runs: Runs, asked: Asked) -> Drawing:
    """Prepare one panel per round; each round has its own components, so the axes differ."""
    run = only(runs, "features")
    questions = questions_of(run, asked.round)
    if any(found.features.shape[1] < 2 for found in questions):
        raise UserError(f"{run.folder} has no features to draw: its model returns none")
    columns = min(3, len(questions))

    def draw(figure: Figure) -> None:
        for axes, found in zip(panels(figure, len(questions), columns), questions, strict=True):
            _panel(axes, found)
        handles = [
            Line2D(
                [],
                [],
                linestyle="",
                marker=marker,
                markersize=5,
                markerfacecolor=colour,
                markeredgecolor=PICKED if colour == "none" else "none",
                label=name,
            )
            for name, (marker, colour) in LOOKS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)

    title = "Selected samples among pool and source"
    told = "; ".join(
        f"round {found.round}: {int(found.picked[found.feature_rows].sum()):,} of {int(found.picked.sum()):,} "
        f"selected samples shown, two components explain {found.explained_variance_ratio[:2].sum():.0%} of the variance"
        for found in questions
    )
    size = (max(2.7 * columns + 0.2, 4.2), 2.7 * -(-len(questions) // columns) + 0.5)
    return Drawing(draw, size, title, f"{title}. {told}.")


def _panel(axes: Axes, found: Snapshot) -> None:
    rows = found.feature_rows
    x, y = (found.features[:, place].astype(np.float32) for place in (0, 1))
    target, picked, known = found.is_target[rows], found.picked[rows], found.is_labelled[rows]
    scatter(axes, x[~target], y[~target], SOURCE, "s", 6)
    plain = target & ~picked & ~known
    scatter(axes, x[plain], y[plain], TARGET, "o", 6)
    ringed(axes, x[known], y[known], 18)
    marked(axes, x[picked], y[picked], marker="D", size=22)
    shown, asked = int(picked.sum()), int(found.picked.sum())
    picks = f"{asked:,} selected" if shown == asked else f"{shown:,} of {asked:,} selected"
    counts = f"{int((~target).sum()):,} source, {int(target.sum()):,} target"
    axes.set_title(f"round {found.round}: {picks}\n{counts}", fontsize=9)
    axes.set_xlabel(f"component 1 ({found.explained_variance_ratio[0]:.0%} of variance)", fontsize=9)
    axes.set_ylabel(f"component 2 ({found.explained_variance_ratio[1]:.0%})", fontsize=9)
    axes.tick_params(labelsize=8)
