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
from ducats.errors import UserError
from ducats.queries.clusters import EXACT, check_feasible, one_of_each
from ducats.rows import Rows, Slate, best

Worth = Literal["entropy", "u_dis", "u_data", "margin"]
Weight = Literal["entropy", "u_dis", "u_data", "even"]
Space = Literal["features", "directions", "gradients"]

GIGABYTES = 2.0  # maximum size of clustered features, in units of 2**30 bytes; k-means holds several copies


def spread(
    slate: Slate,
    *,
    kappa: float = 10.0,
    candidates: Worth = "entropy",
    weights: Weight = "entropy",
    space: Space = "features",
    twins: float | None = None,
    away: bool = False,
    exact: float = EXACT,
) -> Tensor:
    """Cluster the κ·b most uncertain candidates and select one sample per cluster.

    Runs k-means with as many clusters as the budget, weighted by uncertainty, and takes the sample nearest to
    each centre.

    Args:
        kappa: multiple of the budget that is clustered.
        candidates: uncertainty that selects the clustered samples.
        weights: uncertainty that weights samples in k-means, or ``even`` for equal weights.
        space: what is clustered: features, features of unit norm, or BADGE's last-layer gradients.
        twins: cosine similarity of features from which samples count as near-duplicates. Of near-duplicates
            only the most uncertain is clustered, and none if one is already labelled. None: no deduplication.
        away: whether to multiply weights by the distance to the nearest labelled sample.
        exact: limit of clustered samples times budget for full k-means; above it, mini-batches are used.

    Raises:
        UserError: If there are more than `CLUSTERS` clusters or more than `GIGABYTES` of features.
    """
    if kappa < 1:
        raise ValueError(f"query.params.kappa must be at least 1, not {kappa}")
    if twins is not None and not 0 < twins <= 1:
        raise ValueError(f"query.params.twins must be above 0 and at most 1, not {twins}; it is a cosine")
    for name, value, known in (
        ("candidates", candidates, Worth),
        ("weights", weights, Weight),
        ("space", space, Space),
    ):
        if value not in get_args(known):
            raise ValueError(
                f"query.params.{name} must be one of {', '.join(get_args(known))}, not {value!r}"
            )
    worth = slate.candidates.column(candidates)
    # `best` also fixes the order, which makes the clustering independent of the order of the pool.
    first = best(
        -worth if candidates == "margin" else worth, math.ceil(kappa * slate.budget), slate.candidates
    )
    if len(first) <= slate.budget:
        return first
    rows = slate.candidates[first]
    check_feasible(
        "spread", rows, slate.budget, gigabytes=GIGABYTES, number=8, fewer="lower query.params.kappa"
    )
    if twins is not None:
        first = first[_single(rows, slate.labelled, twins, slate.budget)]
        rows = slate.candidates[first]
    if len(first) <= slate.budget:
        return first
    weight = _weights(rows, weights)
    if away and len(slate.labelled):
        weight = weight * _distance(rows, slate.labelled)
    picks = one_of_each(_places(rows, space), weight, slate.budget, slate.generator, exact=exact)
    return first[picks]


def spread_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the two uncertainties and of the clustered space."""
    names = [params.get("candidates", "entropy"), params.get("weights", "entropy"), "features"]
    if params.get("space") == "gradients":
        names.append("z")
    return tuple(dict.fromkeys(name for name in names if name != "even"))


def _weights(rows: Rows, name: Weight) -> Tensor:
    if name == "even":
        return torch.ones(len(rows), device=rows.image.device)
    column = rows.column(name)
    # The column holds log U_dis. Only ratios matter, so the largest weight is set to 1.
    return (column - column.max()).exp() if name == "u_dis" else column


def _places(rows: Rows, space: Space) -> Tensor:
    features = rows.features.flatten(1).double()
    if space == "directions":
        return F.normalize(features)
    if space == "features":
        return features
    p = dirichlet.expected_probability(rows.z.double())
    sides = F.one_hot(p.argmax(1), p.shape[1]) - p
    _check_gradients(len(rows), sides.shape[1] * features.shape[1])
    return torch.einsum("nc,nd->ncd", sides, features).flatten(1)


def _check_gradients(rows: int, width: int) -> None:
    """Raise if the gradients do not fit into memory."""
    gigabytes = rows * width * 8 / 2**30
    if gigabytes > GIGABYTES:
        raise UserError(
            f"the query 'spread' needs to cluster {gigabytes:.1f} GB of gradients; the maximum is "
            f"{GIGABYTES:g} GB. Set query.params.space=features, or query.name=badge, which never builds them"
        )


def _single(rows: Rows, labelled: Rows, cosine: float, least: int) -> Tensor:
    """Indices without near-duplicates of earlier or labelled samples; refilled up to ``least`` if too few."""
    own = F.normalize(rows.features.flatten(1).double())
    open_ = torch.ones(len(rows), dtype=torch.bool, device=own.device)
    if len(labelled):
        known = F.normalize(labelled.features.flatten(1).double())
        open_ &= (own @ known.T).amax(1) < cosine
    kept = []
    for place in range(len(rows)):
        if bool(open_[place]):
            kept.append(place)
            open_ &= own @ own[place] < cosine
    single = torch.zeros(len(rows), dtype=torch.bool)
    single[kept] = True
    if len(kept) < least:
        doubled = (~single).nonzero().squeeze(1)[: least - len(kept)]
        single[doubled] = True
    return single.nonzero().squeeze(1).to(own.device)


def _distance(rows: Rows, labelled: Rows) -> Tensor:
    """Distance of each sample to the nearest labelled one."""
    own, known = (some.features.flatten(1).double() for some in (rows, labelled))
    return torch.cdist(own, known).amin(1)
