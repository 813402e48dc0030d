"""Query of CLUE (Prabhu et al., ICCV 2021): uncertainty-weighted clustering of all candidates."""

import torch
from torch import Tensor

from ducats import dirichlet
from ducats.acquisition.queries.distances import load_features, reorder
from ducats.acquisition.queries.kmeans import FULL_KMEANS_LIMIT, check_kmeans_feasible, one_per_cluster
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.queries.subsampling import SubsampleBy, needs_with_subsampling, subsample_candidates
from ducats.acquisition.samples import QueryContext, top_k

_SAMPLES_PER_CHUNK = 2**16  # samples per pass


def clue(
    context: QueryContext,
    *,
    temperature: float = 1.0,
    full_kmeans_limit: float = FULL_KMEANS_LIMIT,
    subsample: int | None = None,
    subsample_by: SubsampleBy = "entropy_weighted",
) -> Tensor:
    """Select one sample per cluster of the features, weighted by entropy (CLUE).

    Runs k-means on all candidates with as many clusters as the budget, and takes the sample nearest to each
    centre.

    Args:
        temperature: temperature of the softmax whose entropy is the weight; lower values reduce the weight of
            confident samples.
        full_kmeans_limit: limit of candidates times budget for full k-means; above it, mini-batches are used.
        subsample: number of candidates to cluster; None: all. Sampled candidates are weighted by the inverse
            of their inclusion probability.
        subsample_by: ``entropy_weighted`` samples them with probability proportional to the entropy;
            ``highest_entropy`` takes the highest entropies.

    Raises:
        UserError: If there are more than `MAX_CLUSTERS` clusters or more than `MAX_FEATURE_GIB` of features.
    """
    if temperature <= 0:
        raise ValueError(f"query.params.temperature must be above 0, not {temperature}")
    order, inclusion_probability = subsample_candidates(context, subsample, subsample_by)
    if context.budget == 0 or len(order) <= context.budget:
        return order[: context.budget]
    samples = reorder(context.candidates, order)
    weights = torch.cat([dirichlet.entropy(z / temperature) for z in samples.z.split(_SAMPLES_PER_CHUNK)])
    if inclusion_probability is not None:
        weights = weights / inclusion_probability.to(weights.device)
    if samples.min_distance:
        # Overlapping regions would be labelled twice: keep as many as surely fit, most uncertain first.
        non_overlapping = top_k(
            weights, max(context.budget, len(samples) // (2 * samples.min_distance + 1) ** 2), samples
        )
        order, samples, weights = order[non_overlapping], samples[non_overlapping], weights[non_overlapping]
        if len(order) <= context.budget:
            return order
    check_kmeans_feasible("clue", samples, context.budget)
    features = load_features(samples, "clue").float()
    return order[
        one_per_cluster(
            features, weights, context.budget, context.generator, full_kmeans_limit=full_kmeans_limit
        )
    ]


CLUE_SPEC = QuerySpec(
    clue,
    ("z", "features"),
    needs_with_subsampling("z", "features"),
    clusters=True,
    explained_by=UNCERTAINTIES,
)
