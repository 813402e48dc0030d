"""Figure 6: labels by class and round, next to the model's predictions on the pool."""

from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.points import TARGET, Array
from ducats.figures.runs import VOID, RunLike, Runs, class_name, only, plural, tail, when
from ducats.figures.style import COLOURS
from ducats.snapshot_files import Snapshot

MOST = 40  # classes with their own bar; the classes with the fewest labels share one


@dataclass(frozen=True)
class Counts:
    """Number of labels by class and round.

    Args:
        rounds: round numbers.
        classes: classes with a bar, possibly VOID; None stands for all other classes.
        counts: ``(rounds, classes)``.
    """

    rounds: tuple[int, ...]
    classes: tuple[int | None, ...]
    counts: Array


def count(run: RunLike) -> Counts:
    """Count the labels of every round."""
    bought: list[snapshot_files.RoundLabels] = []
    while (found := snapshot_files.load_round_labels(run.folder, len(bought) + 1)) is not None:
        bought.append(found)
    if not any(len(found.label) for found in bought):
        raise UserError(f"{run.folder} has no labels yet; use a run whose first round was answered")
    labels = range(max(len(run.classes), 1 + max(int(f.label.max(initial=-1)) for f in bought)))
    everything = [*labels, *([VOID] if any((f.label == VOID).any() for f in bought) else [])]
    counts = np.array([[int((f.label == label).sum()) for label in everything] for f in bought])
    rounds = tuple(found.round for found in bought)
    if len(everything) <= MOST:
        return Counts(rounds, tuple(everything), counts)
    order = np.sort(np.argsort(-counts.sum(0), kind="stable")[: MOST - 1])
    rest = np.setdiff1d(np.arange(len(everything)), order)
    shown = np.concatenate([counts[:, order], counts[:, rest].sum(1, keepdims=True)], 1)
    return Counts(rounds, (*(everything[place] for place in order), None), shown)


def guesses(found: Snapshot, classes: tuple[int | None, ...]) -> Array:
    """Compute the share of each predicted class in the random sample of the pool."""
    guess = found.predicted[found.is_target & found.sampled]
    shares = np.array([(guess == label).mean() if label is not None else 0.0 for label in classes])
    if None in classes:
        shares[classes.index(None)] = 1 - shares.sum()
    return shares


def histogram(runs: Runs, asked: Asked) -> Drawing:  # noqa: ARG001 - same signature for all figures
    """Prepare stacked bars of the labels, next to the predictions on the pool at the start and the end."""
    run = only(runs, "histogram")
    bought = count(run)
    thoughts, _ = snapshot_files.load_readable_snapshots(run.folder)
    ends = [thoughts[0], thoughts[-1]] if len(thoughts) > 1 else thoughts
    names = [
        "other classes" if label is None else tail(class_name(run, label), 16) for label in bought.classes
    ]
    total, rounds = int(bought.counts.sum()), plural(len(bought.rounds), "round")

    def draw(figure: Figure) -> None:
        row = figure.subplots(1, 2 if ends else 1, squeeze=False, sharey=True)[0]
        _stacked(row[0], bought)
        row[0].set_yticks(range(len(names)), names)
        row[0].set(xlabel=f"{run.kind.axis}, by class", title=f"n={total:,} in {rounds}")
        row[0].set_ylim(len(names) - 0.4, -0.6)
        if ends:
            _shares(row[1], ends, bought.classes)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    most = int(bought.counts.sum(0).argmax())
    title = "Labels of the selected samples by class"
    said = f"{total:,} in {rounds}; most frequent: {names[most]} ({bought.counts.sum(0)[most]:,})"
    return Drawing(
        draw,
        (7.2 if ends else 4.2, 0.21 * len(names) + 1.3 + 0.2 * -(-(len(bought.rounds) + len(ends)) // 4)),
        title,
        f"{title}: {said}.",
    )


def _stacked(axes: Axes, bought: Counts) -> None:
    colours = colormaps["viridis"](np.linspace(0.1, 0.95, len(bought.rounds)))
    left = np.zeros(len(bought.classes))
    for number, counts, colour in zip(bought.rounds, bought.counts, colours, strict=True):
        label = f"round {number}"
        axes.barh(range(len(left)), counts, left=left, color=colour, height=0.8, linewidth=0, label=label)
        left += counts
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(visible=False, axis="y")


def _shares(axes: Axes, ends: list[Snapshot], classes: tuple[int | None, ...]) -> None:
    for place, (found, colour) in enumerate(zip(ends, (COLOURS[5], TARGET), strict=False)):
        sample = int((found.is_target & found.sampled).sum())
        label = f"prediction {when(found)}, n={sample:,}"
        at = np.arange(len(classes)) + (place - (len(ends) - 1) / 2) * 0.4
        axes.barh(at, 100 * guesses(found, classes), color=colour, height=0.4, linewidth=0, label=label)
    axes.set(xlabel="share of the pool, %", title="predicted classes of the pool")
    axes.grid(visible=False, axis="y")
