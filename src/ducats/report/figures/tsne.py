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
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3)
    layout = TSNE(
        2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=0, max_iter=TSNE_ITERATIONS
    )
    with threadpool_limits(1):  # several threads would wait for each other most of the time
        coordinates: AnyArray = layout.fit_transform(features)
    return coordinates


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
