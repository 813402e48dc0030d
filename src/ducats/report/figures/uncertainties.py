"""U_dis against U_data of the candidates in each round, with the query's threshold and selection."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ducats.report.figures.base import FigureOptions, PreparedFigure, make_panels
from ducats.report.figures.points import (
    SELECTED_COLOUR,
    TARGET_COLOUR,
    legend_marker,
    scatter_highlighted,
    scatter_rasterised,
)
from ducats.report.figures.run_settings import get_setting, has_duc_query
from ducats.report.figures.runs import (
    RunSequence,
    format_sample_count,
    is_segmentation,
    require_one_run,
    require_round_snapshots,
)
from ducats.report.figures.style import TEXT_COLOUR, set_log_scale
from ducats.report.run_reader import Run
from ducats.runfolder.snapshot_files import Snapshot

MIN_DRAWN_UNCERTAINTY = 1e-12  # smaller values are drawn here


@dataclass(frozen=True)
class Threshold:
    """Threshold of the first step of the DUC query."""

    axis: Literal["u_dis", "u_data"]  # the uncertainty that is thresholded
    value: float  # lowest value kept, in nats
    n_kept: int  # number of candidates kept
    n_candidates: int  # number of all candidates
    exact: bool  # whether the value is exact; else it is an estimate


def find_threshold(run: Run, snapshot: Snapshot) -> Threshold | None:
    """Compute the threshold in a round; None for other queries, in segmentation, or if all are kept."""
    if is_segmentation(run) or not has_duc_query(run):
        return None  # in segmentation each image has its own threshold
    earlier_labels = [run.files.load_round_labels(round_number) for round_number in range(1, snapshot.round)]
    n_labelled = sum(len(picks.image) for picks in earlier_labels if picks is not None)
    round_labels = run.files.load_round_labels(snapshot.round)
    budget = int(snapshot.picked.sum()) if round_labels is None else len(round_labels.image)
    n_candidates = snapshot.pool - n_labelled
    share = get_setting(run, "query.params.pool_fraction")
    wanted_count = float(get_setting(run, "query.params.kappa")) * (
        budget if share is None else float(share) * snapshot.pool
    )
    n_kept = max(math.ceil(wanted_count - 1e-9), budget)
    if n_kept >= n_candidates or not n_kept:
        return None
    swapped = get_setting(run, "query.params.order") == "data_dis"
    values = snapshot.u_data if swapped else snapshot.log_u_dis
    is_candidate = snapshot.is_target & ~snapshot.is_labelled
    is_complete = int(is_candidate.sum()) == n_candidates
    if is_complete:
        value = np.sort(values[is_candidate])[-n_kept]
    else:
        value = np.quantile(values[is_candidate & snapshot.sampled], 1 - n_kept / n_candidates)
    # With an epsilon the query ranks by a slightly different value than the one drawn.
    exact = is_complete and (swapped or get_setting(run, "query.params.epsilon") is None)
    threshold_value = float(value) if swapped else math.exp(float(value))
    return Threshold("u_data" if swapped else "u_dis", threshold_value, n_kept, n_candidates, exact)


def prepare_uncertainties(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare one panel per round: candidates, selected samples and the threshold of the first step."""
    run = require_one_run(runs, "uncertainties")
    round_snapshots = require_round_snapshots(run, options.round)
    thresholds = [find_threshold(run, snapshot) for snapshot in round_snapshots]
    columns = min(3, len(round_snapshots))

    def draw(figure: Figure) -> None:
        grid = make_panels(figure, len(round_snapshots), columns, share_axes=True)
        for index, (axes, snapshot, threshold) in enumerate(
            zip(grid, round_snapshots, thresholds, strict=True)
        ):
            _draw_panel(axes, snapshot, threshold)
            if index % columns == 0:
                axes.set_ylabel("U_data, nats")
            if index >= len(grid) - columns:
                axes.set_xlabel("U_dis, nats")
        handles = [
            legend_marker("not labelled", "o", color=TARGET_COLOUR, markersize=4),
            legend_marker("selected", "D", color=SELECTED_COLOUR, markersize=6),
        ]
        if any(thresholds):
            label = "threshold of the first step"
            if not all(threshold.exact for threshold in thresholds if threshold):
                label += " (estimated)"
            handles.append(
                Line2D([], [], color=TEXT_COLOUR, linestyle=(0, (4, 2)), linewidth=1.1, label=label)
            )
        note = None
        if is_segmentation(run) and has_duc_query(run):
            note = "each image has its own threshold, so none is drawn"
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=3 if columns > 1 else 2,
            frameon=False,
            fontsize=9,
            title=note,
            title_fontsize=9,
        )

    title = "Distribution uncertainty against data uncertainty"
    summary = "; ".join(
        _describe_round(run, snapshot, threshold)
        for snapshot, threshold in zip(round_snapshots, thresholds, strict=True)
    )
    size = (max(2.6 * columns + 0.3, 4.2), 2.5 * -(-len(round_snapshots) // columns) + 0.5)
    return PreparedFigure(draw, size, title, f"{title}. {summary}.")


def _draw_panel(axes: Axes, snapshot: Snapshot, threshold: Threshold | None) -> None:
    x = np.exp(snapshot.log_u_dis.astype(np.float64)).clip(MIN_DRAWN_UNCERTAINTY)
    y = snapshot.u_data.astype(np.float64).clip(MIN_DRAWN_UNCERTAINTY)
    is_candidate = snapshot.is_target & ~snapshot.is_labelled & ~snapshot.picked
    scatter_rasterised(axes, x[is_candidate], y[is_candidate], TARGET_COLOUR, size=6)
    scatter_highlighted(axes, x[snapshot.picked], y[snapshot.picked], marker="D", size=20)
    if threshold is not None:
        draw_line = axes.axvline if threshold.axis == "u_dis" else axes.axhline
        draw_line(threshold.value, color=TEXT_COLOUR, linestyle=(0, (4, 2)), linewidth=1.1)
    set_log_scale(axes, "x", narrow=True)
    set_log_scale(axes, "y", narrow=True)
    kept_text = "" if threshold is None else f" of {threshold.n_kept:,} kept"
    count = int((is_candidate | snapshot.picked).sum())
    axes.set_title(
        f"round {snapshot.round}: {int(snapshot.picked.sum()):,} selected{kept_text}\nn={count:,}", fontsize=9
    )


def _describe_round(run: Run, snapshot: Snapshot, threshold: Threshold | None) -> str:
    n_selected = int(snapshot.picked.sum())
    text = f"round {snapshot.round}: {n_selected:,} selected of {format_sample_count(snapshot.pool, run)}"
    if threshold is None:
        return text
    minimum_text = f"{'' if threshold.exact else 'about '}{threshold.value:.3g} nats of {threshold.axis}"
    return f"{text}, the first step kept {threshold.n_kept:,} with at least {minimum_text}"
