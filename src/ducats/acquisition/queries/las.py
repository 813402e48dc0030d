"""LAS, the query of LADA (Sun et al., ICCV 2023): local context-aware sampling.

A candidate scores high if its predictions disagree with those of its neighbours, and theirs with their own
neighbours.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.acquisition.queries.distances import (
    load_features,
    nearest_neighbours,
    reorder,
    sort_by_location,
)
from ducats.acquisition.queries.kmeans import FULL_KMEANS_LIMIT, check_kmeans_feasible, one_per_cluster
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.subsampling import SubsampleBy, needs_with_subsampling, subsample_candidates
from ducats.acquisition.samples import QueryContext, SampleTable, random_k, top_k

MAX_PAIRS = 5e9  # maximum number of similarities: all pairs of 70 000 candidates


def las(
    context: QueryContext,
    *,
    K: int = 10,
    M: float = 10.0,
    max_pairs: float = MAX_PAIRS,
    full_kmeans_limit: float = FULL_KMEANS_LIMIT,
    subsample: int | None = None,
    subsample_by: SubsampleBy = "highest_entropy",
) -> Tensor:
    """Select one sample per cluster of the candidates that disagree most with their neighbours (LAS).

    Args:
        K: number of neighbours, by cosine similarity of the features.
        M: cluster the ``(1 + M)`` times budget candidates with the highest disagreement.
        max_pairs: maximum number of similarities to compute. If all pairs are more, neighbours are searched
            in a random subset of the candidates.
        full_kmeans_limit: limit of clustered candidates times budget for full k-means; above it, mini-batches
            are used.
        subsample: number of candidates to consider; None: all. Neighbours are still searched in all
            candidates, or in the random subset that ``max_pairs`` allows.
        subsample_by: ``entropy_weighted`` samples them with probability proportional to the entropy;
            ``highest_entropy`` takes the highest entropies.

    Raises:
        UserError: If there are more than `MAX_CLUSTERS` clusters or more than `MAX_FEATURE_GIB` of features.
    """
    if K < 1:
        raise ValueError(f"query.params.K must be at least 1, not {K}; it is the number of neighbours")
    if M < 0:
        raise ValueError(f"query.params.M must be at least 0, not {M}; every cluster needs a sample")
    considered, _ = subsample_candidates(context, subsample, subsample_by)
    if context.budget == 0 or len(considered) <= context.budget:
        return considered[: context.budget]
    neighbour_pool = _sample_neighbour_pool(
        context.candidates, len(considered), K, max_pairs, context.generator
    )
    order = sort_by_location(context.candidates, torch.cat([considered, neighbour_pool]).unique())
    samples = reorder(context.candidates, order)
    check_kmeans_feasible("las", samples, context.budget)
    features = F.normalize(load_features(samples, "las").float())
    p = dirichlet.expected_probability(samples.z.float())
    score = propagated_scores(features, p, torch.isin(order, neighbour_pool).nonzero().squeeze(1), K)
    considered_rows = torch.isin(order, considered).nonzero().squeeze(1)
    locations = replace(samples, columns={})[considered_rows]
    clustered = considered_rows[
        top_k(score[considered_rows], math.ceil((1 + M) * context.budget - 1e-9), locations)
    ]
    if len(clustered) <= context.budget:
        return order[clustered]
    uniform_weights = torch.ones(len(clustered))
    picks = one_per_cluster(
        features[clustered],
        uniform_weights,
        context.budget,
        context.generator,
        full_kmeans_limit=full_kmeans_limit,
    )
    return order[clustered[picks]]


def _sample_neighbour_pool(
    samples: SampleTable, n_considered: int, K: int, max_pairs: float, generator: torch.Generator
) -> Tensor:
    """Indices of the samples in which neighbours are searched: all, or as many as ``max_pairs`` allows.

    The score also needs the neighbours of neighbours. With a subsample, the similarities to compute are those
    of the subsample and of the neighbour candidates.
    """
    allowed = max_pairs / n_considered
    if n_considered < len(samples):
        allowed = (math.sqrt(n_considered**2 + 4 * max_pairs) - n_considered) / 2
    count = min(len(samples), max(K + 1, int(min(allowed, len(samples)))))
    return random_k(generator, count, samples)


def propagated_scores(features: Tensor, p: Tensor, neighbour_pool: Tensor, K: int) -> Tensor:
    """Compute the LAS score of each sample, ``(R,)``.

    ``Q_i = -sum_k w_k p_i . p_k`` over the K nearest neighbours, with normalised similarities ``w_k``. One
    propagation step then gives the score ``Q_i + sum_k w_k Q_k``.

    Args:
        features: ``(R, D)``, of unit norm.
        neighbour_pool: ascending indices of the samples that can be neighbours.
        K: number of neighbours.
    """
    neighbour_indices, weight = k_nearest(features, neighbour_pool, K)
    q = torch.cat(
        [
            -(w * (own[:, None] * p[neighbour_chunk]).sum(2)).sum(1)
            for own, neighbour_chunk, w in zip(
                p.split(2**14), neighbour_indices.split(2**14), weight.split(2**14), strict=True
            )
        ]
    )
    return q + (weight * q[neighbour_indices]).sum(1)


def k_nearest(features: Tensor, neighbour_pool: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Return the K nearest neighbours of each sample and their normalised similarities, both ``(R, K)``.

    Args:
        features: ``(R, D)``, of unit norm.
        neighbour_pool: ascending indices of the samples that can be neighbours; a sample is not its own
            neighbour.
        K: number of neighbours; all others if there are fewer.
    """
    indices, similarities = zip(*nearest_neighbours(features, neighbour_pool, K), strict=True)
    # The cosine of features without a ReLU may be negative, but a weight must not be.
    weight = torch.cat(similarities).clamp(min=0)
    total = weight.sum(1, keepdim=True)
    return torch.cat(indices), torch.where(total > 0, weight / total.clamp(min=1e-12), 1 / weight.shape[1])


LAS_SPEC = QuerySpec(
    las,
    ("z", "features"),
    needs_with_subsampling("z", "features"),
    streaming=None,
    clusters=True,
    explained_by=UNCERTAINTIES,
)
