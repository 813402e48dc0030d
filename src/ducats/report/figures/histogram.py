"""Figure 6: labels by class and round, next to the model's predictions on the pool."""

from dataclasses import dataclass, replace

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.pixels import load_all_round_labels
from ducats.report.figures.points import TARGET_COLOUR
from ducats.report.figures.runs import (
    VOID_LABEL,
    RunSequence,
    describe_time,
    require_one_run,
    shorten_start,
)
from ducats.report.figures.style import PLOT_COLOURS
from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.npz_columns import AnyArray

MAX_CLASS_BARS = 40  # classes with their own bar; the classes with the fewest labels share one


@dataclass(frozen=True)
class LabelCounts:
    """Number of labels by class and round."""

    rounds: tuple[int, ...]  # round numbers
    classes: tuple[int | None, ...]  # classes with a bar, possibly VOID; None stands for all other classes
    counts: AnyArray  # `(rounds, classes)`


def count_labels(run: Run) -> LabelCounts:
    """Count the labels of every round."""
    labels_by_round = load_all_round_labels(run)
    if not any(len(f.label) for f in labels_by_round):
        raise UserError(f"{run.folder} has no labels yet; use a run whose first round was answered")
    n_labels = max(len(run.classes), 1 + max(int(f.label.max(initial=-1)) for f in labels_by_round))
    merged = {n for n, into in enumerate(run.class_list.merged_into) if n != into}
    labels = [label for label in range(n_labels) if label not in merged]
    has_void = any((f.label == VOID_LABEL).any() for f in labels_by_round)
    all_classes = [*labels, *([VOID_LABEL] if has_void else [])]
    counts = np.array([[int((f.label == label).sum()) for label in all_classes] for f in labels_by_round])
    rounds = tuple(f.round for f in labels_by_round)
    if len(all_classes) <= MAX_CLASS_BARS:
        return LabelCounts(rounds, tuple(all_classes), counts)
    order = np.sort(np.argsort(-counts.sum(0), kind="stable")[: MAX_CLASS_BARS - 1])
    rest = np.setdiff1d(np.arange(len(all_classes)), order)
    shown = np.concatenate([counts[:, order], counts[:, rest].sum(1, keepdims=True)], 1)
    return LabelCounts(rounds, (*(all_classes[index] for index in order), None), shown)


def prediction_shares(snapshot: Snapshot, classes: tuple[int | None, ...]) -> AnyArray:
    """Compute the share of each predicted class in the random sample of the pool."""
    predictions = snapshot.predicted[snapshot.is_target & snapshot.sampled]
    shares = np.array([(predictions == label).mean() if label is not None else 0.0 for label in classes])
    if None in classes:
        shares[classes.index(None)] = 1 - shares.sum()
    return shares


def prepare_histogram(runs: RunSequence, _: FigureOptions) -> PreparedFigure:
    """Prepare stacked bars of the labels, next to the predictions on the pool at the start and the end."""
    run = require_one_run(runs, "histogram")
    label_counts = count_labels(run)
    readable_snapshots = snapshot_files.load_readable_snapshots(run.folder)[0]
    first_and_last = [*readable_snapshots[:1], *readable_snapshots[1:][-1:]]
    if run.class_list.groups is not None:
        merged_into = np.array(run.class_list.merged_into)
        first_and_last = [replace(one, predicted=merged_into[one.predicted]) for one in first_and_last]
    names = [
        "other classes" if c is None else "void" if c == VOID_LABEL else shorten_start(run.class_name(c), 16)
        for c in label_counts.classes
    ]
    total, rounds = int(label_counts.counts.sum()), pluralise(len(label_counts.rounds), "round")

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2 if first_and_last else 1, squeeze=False, sharey=True)[0]
        _draw_label_bars(row[0], label_counts)
        row[0].set_yticks(range(len(names)), names)
        row[0].set(xlabel=f"{run.kind.labels_axis}, by class", title=f"n={total:,} in {rounds}")
        row[0].set_ylim(len(names) - 0.4, -0.6)
        if first_and_last:
            _draw_prediction_bars(row[1], first_and_last, label_counts.classes)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    most_frequent = int(label_counts.counts.sum(0).argmax())
    title = "Labels of the selected samples by class"
    n_most_frequent = label_counts.counts.sum(0)[most_frequent]
    summary = f"{total:,} in {rounds}; most frequent: {names[most_frequent]} ({n_most_frequent:,})"
    n_legend_rows = -(-(len(label_counts.rounds) + len(first_and_last)) // 4)
    size = (7.2 if first_and_last else 4.2, 0.21 * len(names) + 1.3 + 0.2 * n_legend_rows)
    return PreparedFigure(draw, size, title, f"{title}: {summary}.")


def _draw_label_bars(axes: Axes, label_counts: LabelCounts) -> None:
    colours = colormaps["viridis"](np.linspace(0.1, 0.95, len(label_counts.rounds)))
    left = np.zeros(len(label_counts.classes))
    for round_number, counts, colour in zip(label_counts.rounds, label_counts.counts, colours, strict=True):
        label = f"round {round_number}"
        axes.barh(range(len(left)), counts, left=left, color=colour, height=0.8, linewidth=0, label=label)
        left += counts
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(visible=False, axis="y")


def _draw_prediction_bars(
    axes: Axes, first_and_last: list[Snapshot], classes: tuple[int | None, ...]
) -> None:
    colours = (PLOT_COLOURS[5], TARGET_COLOUR)
    for index, (snapshot, colour) in enumerate(zip(first_and_last, colours, strict=False)):
        sample = int((snapshot.is_target & snapshot.sampled).sum())
        label = f"prediction {describe_time(snapshot)}, n={sample:,}"
        positions = np.arange(len(classes)) + (index - (len(first_and_last) - 1) / 2) * 0.4
        shares = 100 * prediction_shares(snapshot, classes)
        axes.barh(positions, shares, color=colour, height=0.4, linewidth=0, label=label)
    axes.set(xlabel="share of the pool, %", title="predicted classes of the pool")
    axes.grid(visible=False, axis="y")
