"""U_dis against U_data of the candidates in each round, with the query's threshold and selection."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ducats import snapshot_files
from ducats.figures.drawing import Asked, Drawing, panels
from ducats.figures.points import PICKED, TARGET, marked, scatter
from ducats.figures.runs import RunLike, Runs, many, of_pixels, only, questions_of
from ducats.figures.settings import setting
from ducats.figures.style import INK, log_scale
from ducats.snapshot_files import Snapshot

SMALLEST = 1e-12  # smaller values are drawn here


@dataclass(frozen=True)
class Cut:
    """Threshold of the first step of the DUC query.

    Args:
        axis: the uncertainty that is thresholded.
        value: lowest value kept, in nats.
        passed: number of candidates kept.
        candidates: number of all candidates.
        exact: whether the value is exact; else it is an estimate.
    """

    axis: Literal["u_dis", "u_data"]
    value: float
    passed: int
    candidates: int
    exact: bool


def cut(run: RunLike, found: Snapshot) -> Cut | None:
    """Compute the threshold in a round; None for other queries, in segmentation, or if all are kept."""
    if of_pixels(run) or setting(run, "query.name") != "duc":
        return None  # in segmentation each image has its own threshold
    earlier = [snapshot_files.load_round_labels(run.folder, number) for number in range(1, found.round)]
    known = sum(len(picks.image) for picks in earlier if picks is not None)
    bought = snapshot_files.load_round_labels(run.folder, found.round)
    budget = int(found.picked.sum()) if bought is None else len(bought.image)
    candidates = found.pool - known
    share = setting(run, "query.params.pool_fraction")
    wanted = float(setting(run, "query.params.kappa")) * (
        budget if share is None else float(share) * found.pool
    )
    passed = max(math.ceil(wanted - 1e-9), budget)
    if passed >= candidates or not passed:
        return None
    swapped = setting(run, "query.params.order") == "data_dis"
    values = found.u_data if swapped else found.log_u_dis
    open_ = found.is_target & ~found.is_labelled
    whole = int(open_.sum()) == candidates
    if whole:
        value = np.sort(values[open_])[-passed]
    else:
        value = np.quantile(values[open_ & found.sampled], 1 - passed / candidates)
    # With an epsilon the query ranks by a slightly different value than the one drawn.
    exact = whole and (swapped or setting(run, "query.params.epsilon") is None)
    plain = float(value) if swapped else math.exp(float(value))
    return Cut("u_data" if swapped else "u_dis", plain, passed, candidates, exact)


def uncertainties(runs: Runs, asked: Asked) -> Drawing:
    """Prepare one panel per round: candidates, selected samples and the threshold of the first step."""
    run = only(runs, "uncertainties")
    questions = questions_of(run, asked.round)
    cuts = [cut(run, found) for found in questions]
    columns = min(3, len(questions))

    def draw(figure: Figure) -> None:
        grid = panels(figure, len(questions), columns, share=True)
        for place, (axes, found, where) in enumerate(zip(grid, questions, cuts, strict=True)):
            _panel(axes, found, where)
            if place % columns == 0:
                axes.set_ylabel("U_data, nats")
            if place >= len(grid) - columns:
                axes.set_xlabel("U_dis, nats")
        handles = [
            Line2D([], [], linestyle="", marker="o", color=TARGET, markersize=4, label="not labelled"),
            Line2D([], [], linestyle="", marker="D", color=PICKED, markersize=6, label="selected"),
        ]
        if any(cuts):
            label = "threshold of the first step"
            if not all(where.exact for where in cuts if where):
                label += " (estimated)"
            handles.append(Line2D([], [], color=INK, linestyle=(0, (4, 2)), linewidth=1.1, label=label))
        apart = of_pixels(run) and setting(run, "query.name") == "duc"
        note = "each image has its own threshold, so none is drawn" if apart else None
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=9,
            title=note,
            title_fontsize=9,
        )

    title = "Distribution uncertainty against data uncertainty"
    told = "; ".join(_told(run, found, where) for found, where in zip(questions, cuts, strict=True))
    size = (max(2.6 * columns + 0.3, 4.2), 2.5 * -(-len(questions) // columns) + 0.5)
    return Drawing(draw, size, title, f"{title}. {told}.")


def _panel(axes: Axes, found: Snapshot, where: Cut | None) -> None:
    x = np.exp(found.log_u_dis.astype(np.float64)).clip(SMALLEST)
    y = found.u_data.astype(np.float64).clip(SMALLEST)
    plain = found.is_target & ~found.is_labelled & ~found.picked
    scatter(axes, x[plain], y[plain], TARGET, size=6)
    marked(axes, x[found.picked], y[found.picked], marker="D", size=20)
    if where is not None:
        line = axes.axvline if where.axis == "u_dis" else axes.axhline
        line(where.value, color=INK, linestyle=(0, (4, 2)), linewidth=1.1)
    log_scale(axes, "x", narrow=True)
    log_scale(axes, "y", narrow=True)
    passed = "" if where is None else f" of {where.passed:,} kept"
    count = int((plain | found.picked).sum())
    axes.set_title(
        f"round {found.round}: {int(found.picked.sum()):,} selected{passed}\nn={count:,}", fontsize=9
    )


def _told(run: RunLike, found: Snapshot, where: Cut | None) -> str:
    text = f"round {found.round}: {int(found.picked.sum()):,} selected of {many(found.pool, run)}"
    if where is None:
        return text
    least = f"{'' if where.exact else 'about '}{where.value:.3g} nats of {where.axis}"
    return f"{text}, the first step kept {where.passed:,} with at least {least}"
