"""Figure 8: t-SNE of source and target features at the end of a run, to show how well domains align."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure, make_panels
from ducats.report.figures.points import (
    SELECTED_COLOUR,
    SOURCE_COLOUR,
    TARGET_COLOUR,
    legend_marker,
    scatter_rasterised,
    scatter_rings,
    source_neighbour_share,
)
from ducats.report.figures.runs import RunSequence, describe_time, require_snapshots
from ducats.report.run_reader import Run
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

MAX_TSNE_POINTS = 1500  # maximum number of points
MAX_TSNE_RUNS = 9  # maximum number of runs; each takes seconds
TSNE_ITERATIONS = 500  # iterations; the layout hardly changes afterwards
N_NEIGHBOURS = 10
EARLY_EXAGGERATION = 12.0  # of the affinities in the first half of the iterations
INITIAL_SPREAD = 1e-4  # standard deviation of the first coordinate at the start
BISECTION_STEPS = 30


@dataclass(frozen=True)
class TsneEmbedding:
    """Samples embedded in the plane."""

    title: str
    coordinates: AnyArray  # `(N, 2)` coordinates; only neighbourhoods are meaningful
    is_target: AnyArray  # bool; False for source samples
    is_labelled: AnyArray  # bool
    # Share of source among a target sample's neighbours in feature space, and its value for fully mixed
    # domains; None if there is only one domain.
    domain_mixing: tuple[float, float] | None


def embed_run(run: Run, max_points: int = MAX_TSNE_POINTS) -> TsneEmbedding:
    """Embed a run's last snapshot: labelled samples first, then a random subset of the others."""
    snapshot = require_snapshots(run)[-1]
    rows, features = snapshot.feature_rows, snapshot.features.astype(np.float32)
    if len(rows) < 4:
        raise UserError(
            f"{run.folder} has too few features for t-SNE: its model returns none, or the data is too small"
        )
    is_target, is_labelled = snapshot.is_target[rows], snapshot.is_labelled[rows]
    # Labelled samples first, the others in random order, so no domain is cut off.
    order = np.lexsort((np.random.default_rng(0).permutation(len(rows)), ~is_labelled))
    subset = np.sort(order[:max_points])
    title = f"{run.method}, seed {run.seed}, {describe_time(snapshot)}"
    domain_mixing = source_neighbour_share(features, is_target, N_NEIGHBOURS)
    return TsneEmbedding(
        title, _fit_tsne(features[subset]), is_target[subset], is_labelled[subset], domain_mixing
    )


def _fit_tsne(features: AnyArray) -> AnyArray:
    """Embed samples in the plane with exact t-SNE (van der Maaten and Hinton, 2008).

    For this many points it takes less time than importing scikit-learn. One thread: several would wait for
    each other most of the time, and the last digits would depend on their number.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return _minimise_divergence(features)


def _minimise_divergence(features: AnyArray) -> AnyArray:
    """Return the embedding: gradient descent with momentum and gains, from two principal components."""
    n_points = len(features)
    affinities = _joint_affinities(features, min(30.0, (n_points - 1) / 3))
    points = _principal_components(features)
    learning_rate = max(n_points / EARLY_EXAGGERATION / 4, 50.0)
    update, gains = np.zeros_like(points), np.ones_like(points)
    ones = np.ones((n_points, 1), np.float32)
    for iteration in range(TSNE_ITERATIONS):
        is_early = iteration < TSNE_ITERATIONS // 2
        squares = (points**2).sum(1, keepdims=True)
        # 1 + squared distance, as one product
        kernel = np.hstack([-2 * points, squares + 1, ones]) @ np.hstack([points, ones, squares]).T
        np.reciprocal(kernel, out=kernel)
        np.fill_diagonal(kernel, 0)
        scale = EARLY_EXAGGERATION if is_early else 1.0
        extended = np.hstack([points, ones])
        forces = scale * ((affinities * kernel) @ extended) - ((kernel * kernel) @ extended) / kernel.sum()
        gradient = 4 * (forces[:, 2:] * points - forces[:, :2])
        gains = np.where(update * gradient < 0, gains + 0.2, gains * 0.8).clip(0.01)
        update = (0.5 if is_early else 0.8) * update - learning_rate * gains * gradient
        points = (points + update).astype(np.float32)
    return points


def _joint_affinities(features: AnyArray, perplexity: float) -> AnyArray:
    """Return symmetric affinities with sum 1; the bandwidth of each point is found by bisection."""
    features64 = features.astype(np.float64)
    squares = (features64**2).sum(1)
    distances = (squares[:, None] + squares - 2 * features64 @ features64.T).clip(0)
    np.fill_diagonal(distances, np.inf)
    distances -= distances.min(1, keepdims=True)  # the nearest at 0: no row of affinities underflows
    scale = np.maximum(np.mean(distances, axis=1, where=np.isfinite(distances)), 1e-12)
    low, high = np.log(1e-6 / scale), np.log(1e6 / scale)
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        weights = np.exp(-distances * np.exp(middle)[:, None])
        shares = weights / weights.sum(1, keepdims=True)
        entropy = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(1)
        is_wide = entropy > np.log(perplexity)
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    affinities: AnyArray = ((shares + shares.T) / (2 * len(features))).astype(np.float32)
    return affinities


def _principal_components(features: AnyArray) -> AnyArray:
    """Return the first two principal components, tiny, with a fixed sign."""
    left, values, axes = np.linalg.svd(features - features.mean(0), full_matrices=False)
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    components = (left * values * signs)[:, :2]
    scale = components[:, 0].std() or 1.0
    padded: AnyArray = np.zeros((len(features), 2), np.float32)
    padded[:, : components.shape[1]] = components / scale * INITIAL_SPREAD
    return padded


def prepare_tsne(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare one panel per run, with the share of source among each target sample's neighbours."""
    if len(runs) > MAX_TSNE_RUNS:
        raise UserError(
            f"`ducats figure tsne` shows at most {MAX_TSNE_RUNS} runs, not {len(runs)}; give fewer run "
            "folders"
        )
    embeddings = [embed_run(run, options.max_points or MAX_TSNE_POINTS) for run in runs]

    def draw(figure: Figure) -> None:
        for axes, embedding in zip(make_panels(figure, len(embeddings), 3), embeddings, strict=True):
            x, y = embedding.coordinates.T
            for target, colour, marker in ((False, SOURCE_COLOUR, "s"), (True, TARGET_COLOUR, "o")):
                in_domain = embedding.is_target == target
                scatter_rasterised(axes, x[in_domain], y[in_domain], colour, marker, 7)
            scatter_rings(axes, x[embedding.is_labelled], y[embedding.is_labelled], 24)
            axes.set_title(
                f"{embedding.title}\n{_format_counts(embedding)}\n{_format_mixing(embedding)}", fontsize=8
            )
            axes.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
        legend_styles = {
            "source": ("s", SOURCE_COLOUR, SOURCE_COLOUR),
            "target": ("o", TARGET_COLOUR, TARGET_COLOUR),
            "labelled": ("o", "none", SELECTED_COLOUR),
        }
        handles = [
            legend_marker(name, mark, markerfacecolor=fill, markeredgecolor=edge)
            for name, (mark, fill, edge) in legend_styles.items()
            if name != "labelled" or any(each.is_labelled.any() for each in embeddings)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)

    columns = min(len(embeddings), 3)
    title = "t-SNE of source and target features"
    summary = "; ".join(
        f"{embedding.title}: {_format_counts(embedding)}, {_format_mixing(embedding)}"
        for embedding in embeddings
    )
    size = (3.4 * columns, 3.5 * -(-len(embeddings) // columns) + 0.3)
    return PreparedFigure(draw, size, title, f"{title}. {summary}.")


def _format_counts(embedding: TsneEmbedding) -> str:
    return (
        f"n={(~embedding.is_target).sum():,} source, {embedding.is_target.sum():,} target, "
        f"{embedding.is_labelled.sum():,} labelled"
    )


def _format_mixing(embedding: TsneEmbedding) -> str:
    if embedding.domain_mixing is None:
        return "one domain only"
    share, share_if_mixed = embedding.domain_mixing
    return f"source among {N_NEIGHBOURS} nearest of target: {share:.0%} (if mixed: {share_if_mixed:.0%})"
