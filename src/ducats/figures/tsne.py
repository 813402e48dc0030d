"""Figure 8: t-SNE of source and target features at the end of a run, to show how well domains align."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing, panels
from ducats.figures.points import PICKED, SOURCE, TARGET, Array, from_source, ringed, scatter
from ducats.figures.runs import RunLike, Runs, snapshots_of, when

MOST = 1500  # maximum number of points
PANELS = 9  # maximum number of runs; each takes seconds
STEPS = 500  # iterations; the layout hardly changes afterwards
NEIGHBOURS = 10


@dataclass(frozen=True)
class Laid:
    """Samples embedded in the plane.

    Args:
        place: ``(N, 2)`` coordinates; only neighbourhoods are meaningful.
        target: bool: target sample, else source.
        known: bool: labelled.
        mixed: share of source among a target sample's neighbours in feature space, and its value for fully
            mixed domains; None if there is only one domain.
    """

    title: str
    place: Array
    target: Array
    known: Array
    mixed: tuple[float, float] | None


def lay(run: RunLike, most: int = MOST) -> Laid:
    """Embed a run's last snapshot: labelled samples first, then a random subset of the others."""
    found = snapshots_of(run)[-1]
    rows, features = found.feature_rows, found.features.astype(np.float32)
    if len(rows) < 4:
        raise UserError(
            f"{run.folder} has too few features for t-SNE: its model returns none, or the data is too small"
        )
    target, known = found.is_target[rows], found.is_labelled[rows]
    # Labelled samples first, the others in random order, so no domain is cut off.
    order = np.lexsort((np.random.default_rng(0).permutation(len(rows)), ~known))
    some = np.sort(order[:most])
    title = f"{run.method}, seed {run.seed}, {when(found)}"
    mixed = from_source(features, target, NEIGHBOURS)
    return Laid(title, _embedded(features[some]), target[some], known[some], mixed)


def _embedded(features: Array) -> Array:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    layout = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=0, max_iter=STEPS)
    found: Array = layout.fit_transform(features)
    return found


def tsne(runs: Runs, asked: Asked) -> Drawing:
    """Prepare one panel per run, with the share of source among each target sample's neighbours."""
    if len(runs) > PANELS:
        raise UserError(
            f"`ducats figure tsne` shows at most {PANELS} runs, not {len(runs)}; give fewer run folders"
        )
    laid = [lay(run, asked.points or MOST) for run in runs]

    def draw(figure: Figure) -> None:
        for axes, one in zip(panels(figure, len(laid), 3), laid, strict=True):
            for target, colour, marker in ((False, SOURCE, "s"), (True, TARGET, "o")):
                some = one.target == target
                scatter(axes, one.place[some, 0], one.place[some, 1], colour, marker, 7)
            ringed(axes, one.place[one.known, 0], one.place[one.known, 1], 24)
            axes.set_title(f"{one.title}\n{_counts(one)}\n{_mixture(one)}", fontsize=8)
            axes.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
        looks = {
            "source": ("s", SOURCE, SOURCE),
            "target": ("o", TARGET, TARGET),
            "labelled": ("o", "none", PICKED),
        }
        handles = [
            Line2D([], [], linestyle="", marker=mark, markerfacecolor=fill, markeredgecolor=edge, label=who)
            for who, (mark, fill, edge) in looks.items()
            if who != "labelled" or any(one.known.any() for one in laid)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)

    columns = min(len(laid), 3)
    title = "t-SNE of source and target features"
    said = "; ".join(f"{one.title}: {_counts(one)}, {_mixture(one)}" for one in laid)
    size = (3.4 * columns, 3.5 * -(-len(laid) // columns) + 0.3)
    return Drawing(draw, size, title, f"{title}. {said}.")


def _counts(one: Laid) -> str:
    return f"n={(~one.target).sum():,} source, {one.target.sum():,} target, {one.known.sum():,} labelled"


def _mixture(one: Laid) -> str:
    if one.mixed is None:
        return "one domain only"
    return f"source among {NEIGHBOURS} nearest of target: {one.mixed[0]:.0%} (if mixed: {one.mixed[1]:.0%})"
