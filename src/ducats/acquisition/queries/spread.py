"""Our own query: uncertain and diverse samples.

With few labels, the most uncertain samples are near-duplicates, and labelling them all adds little. So the
uncertain samples are clustered by their features, and one per cluster is selected.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.acquisition.queries.kmeans import FULL_KMEANS_LIMIT, check_kmeans_feasible, one_per_cluster
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec, StreamingRule
from ducats.acquisition.queries.two_round import check_kappa
from ducats.acquisition.samples import QueryContext, SampleTable, top_k
from ducats.utils.errors import UserError

CandidateCriterion = Literal["entropy", "u_dis", "u_data", "margin"]
ClusterWeight = Literal["entropy", "u_dis", "u_data", "uniform"]
ClusterSpace = Literal["features", "normalised_features", "gradients"]

MAX_CLUSTERED_GIB = 2.0  # maximum size of clustered features, in 2**30 bytes; k-means holds several copies


def spread(
    context: QueryContext,
    *,
    kappa: float = 10.0,
    candidates_by: CandidateCriterion = "entropy",
    weights_by: ClusterWeight = "entropy",
    space: ClusterSpace = "features",
    dedup_cosine: float | None = None,
    distance_weighted: bool = False,
    full_kmeans_limit: float = FULL_KMEANS_LIMIT,
) -> Tensor:
    """Cluster the κ·b most uncertain candidates and select one sample per cluster.

    Runs k-means with as many clusters as the budget, weighted by uncertainty, and takes the sample nearest to
    each centre.

    Args:
        kappa: multiple of the budget that is clustered.
        candidates_by: uncertainty that selects the clustered samples.
        weights_by: uncertainty that weights samples in k-means, or ``uniform`` for equal weights.
        space: what is clustered: features, features of unit norm, or BADGE's last-layer gradients.
        dedup_cosine: cosine similarity of features from which samples count as near-duplicates. Of
            near-duplicates only the most uncertain is clustered, and none if one is already labelled. None:
            no deduplication.
        distance_weighted: whether to multiply weights by the distance to the nearest labelled sample.
        full_kmeans_limit: limit of clustered samples times budget for full k-means; above it, mini-batches
            are used.

    Raises:
        UserError: If there are more than `MAX_CLUSTERS` clusters or `MAX_CLUSTERED_GIB` of features.
    """
    check_kappa(kappa)
    if dedup_cosine is not None and not 0 < dedup_cosine <= 1:
        raise ValueError(
            f"query.params.dedup_cosine must be above 0 and at most 1, not {dedup_cosine}; it is a cosine"
        )
    for name, value, literal in (
        ("candidates_by", candidates_by, CandidateCriterion),
        ("weights_by", weights_by, ClusterWeight),
        ("space", space, ClusterSpace),
    ):
        if value not in get_args(literal):
            raise ValueError(
                f"query.params.{name} must be one of {', '.join(get_args(literal))}, not {value!r}"
            )
    candidate_scores = context.candidates.column(candidates_by)
    # `top_k` also fixes the order, which makes the clustering independent of the order of the pool.
    candidate_indices = top_k(
        -candidate_scores if candidates_by == "margin" else candidate_scores,
        math.ceil(kappa * context.budget),
        context.candidates,
    )
    if len(candidate_indices) <= context.budget:
        return candidate_indices
    samples = context.candidates[candidate_indices]
    check_kmeans_feasible(
        "spread",
        samples,
        context.budget,
        max_gib=MAX_CLUSTERED_GIB,
        bytes_per_value=8,
        reduce_hint="lower query.params.kappa",
    )
    if dedup_cosine is not None:
        candidate_indices = candidate_indices[
            _deduplicate(samples, context.labelled, dedup_cosine, context.budget)
        ]
        samples = context.candidates[candidate_indices]
    if len(candidate_indices) <= context.budget:
        return candidate_indices
    weight = _cluster_weights(samples, weights_by)
    if distance_weighted and len(context.labelled):
        own, labelled = (table.features.flatten(1).double() for table in (samples, context.labelled))
        weight = weight * torch.cdist(own, labelled).amin(1)
    picks = one_per_cluster(
        _cluster_points(samples, space),
        weight,
        context.budget,
        context.generator,
        full_kmeans_limit=full_kmeans_limit,
    )
    return candidate_indices[picks]


def spread_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the two uncertainties and of the clustered space."""
    names = [params.get("candidates_by", "entropy"), params.get("weights_by", "entropy"), "features"]
    if params.get("space") == "gradients":
        names.append("z")
    return tuple(dict.fromkeys(name for name in names if name != "uniform"))


def candidate_columns(params: Mapping[str, Any]) -> tuple[str]:
    """Return the column that ranks the clustered samples; a leading minus ranks the lowest first."""
    name = params.get("candidates_by", "entropy")
    return ("-margin" if name == "margin" else name,)


def _cluster_weights(samples: SampleTable, name: ClusterWeight) -> Tensor:
    if name == "uniform":
        return torch.ones(len(samples), device=samples.image.device)
    column = samples.column(name)
    # The column holds log U_dis. Only ratios matter, so the largest weight is set to 1.
    return (column - column.max()).exp() if name == "u_dis" else column


def _cluster_points(samples: SampleTable, space: ClusterSpace) -> Tensor:
    features = samples.features.flatten(1).double()
    if space == "normalised_features":
        return F.normalize(features)
    if space == "features":
        return features
    p = dirichlet.expected_probability(samples.z.double())
    residuals = F.one_hot(p.argmax(1), p.shape[1]) - p
    gigabytes = residuals.numel() * features.shape[1] * 8 / 2**30
    if gigabytes > MAX_CLUSTERED_GIB:
        raise UserError(
            f"the query 'spread' needs to cluster {gigabytes:.1f} GB of gradients; the maximum is "
            f"{MAX_CLUSTERED_GIB:g} GB. Set query.params.space=features, or query.name=badge, which never "
            "builds them"
        )
    return torch.einsum("nc,nd->ncd", residuals, features).flatten(1)


def _deduplicate(samples: SampleTable, labelled: SampleTable, cosine: float, min_count: int) -> Tensor:
    """Return the indices of samples that are not near-duplicates of earlier or labelled ones.

    If these are too few, near-duplicates are added, up to ``min_count`` indices.
    """
    own = F.normalize(samples.features.flatten(1).double())
    is_distinct = torch.ones(len(samples), dtype=torch.bool, device=own.device)
    if len(labelled):
        labelled_features = F.normalize(labelled.features.flatten(1).double())
        is_distinct &= (own @ labelled_features.T).amax(1) < cosine
    unique = []
    for index in range(len(samples)):
        if bool(is_distinct[index]):
            unique.append(index)
            is_distinct &= own @ own[index] < cosine
    keep = torch.zeros(len(samples), dtype=torch.bool)
    keep[unique] = True
    if len(unique) < min_count:
        duplicates = (~keep).nonzero().squeeze(1)[: min_count - len(unique)]
        keep[duplicates] = True
    return keep.nonzero().squeeze(1).to(own.device)


SPREAD_SPEC = QuerySpec(
    spread,
    spread_needs({}),
    spread_needs,
    streaming=StreamingRule("shortlist", candidate_columns({}), candidate_columns),
    clusters=True,
    explained_by=UNCERTAINTIES,
)
