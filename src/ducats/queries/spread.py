"""Our own query: uncertain, and unlike each other.

With few labels the most uncertain samples are near-twins, and the budget buys one lesson many times. So the
uncertain ones are clustered by what the last layer sees, and one of each cluster is asked.
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

GIGABYTES = 2.0  # (2**30 bytes) of features to cluster, at most: k-means holds several such tables


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
    """One from each cluster of the kappa times budget most uncertain candidates.

    K-means with as many clusters as the budget, weighted by uncertainty; from each cluster the sample nearest
    to its centre.

    Args:
        slate: the candidates.
        kappa: how many times the budget are clustered.
        candidates: by which uncertainty these are chosen.
        weights: how much each draws its centre: by an uncertainty, or all the same.
        space: what is clustered: features, their directions alone, or the gradients that a label would give
            the last layer (BADGE's).
        twins: of samples whose features have at least this cosine, one is clustered, the most uncertain; one
            that has a twin among those already bought, none. None: all.
        away: whether a sample weighs more the farther it is from the nearest one bought.
        exact: clustered samples times budget, up to which k-means sees all at once; mini-batches beyond.

    Raises:
        UserError: That is more than k-means can do: over CLUSTERS clusters, or over GIGABYTES of features.
    """
    if kappa < 1:
        raise ValueError(f"kappa must be at least 1, not {kappa}: a cluster needs a sample")
    if twins is not None and not 0 < twins <= 1:
        raise ValueError(f"twins is a cosine from above 0 to 1, not {twins}")
    for name, value, known in (
        ("candidates", candidates, Worth),
        ("weights", weights, Weight),
        ("space", space, Space),
    ):
        if value not in get_args(known):
            raise ValueError(f"{name} is one of {', '.join(get_args(known))}, not {value!r}")
    worth = slate.candidates.column(candidates)
    # `best` also fixes the order, so the clustering does not depend on the order of the pool.
    first = best(
        -worth if candidates == "margin" else worth, math.ceil(kappa * slate.budget), slate.candidates
    )
    if len(first) <= slate.budget:
        return first
    rows = slate.candidates[first]
    check_feasible(
        "spread", rows, slate.budget, gigabytes=GIGABYTES, number=8, fewer="lower query.knobs.kappa"
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


def spread_needs(knobs: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of the two uncertainties, and of what is clustered."""
    names = [knobs.get("candidates", "entropy"), knobs.get("weights", "entropy"), "features"]
    if knobs.get("space") == "gradients":
        names.append("z")
    return tuple(dict.fromkeys(name for name in names if name != "even"))


def _weights(rows: Rows, name: Weight) -> Tensor:
    if name == "even":
        return torch.ones(len(rows), device=rows.image.device)
    column = rows.column(name)
    # U_dis is kept as its logarithm; the largest is 1, since nothing but the shares matters.
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
    """Refuse gradients that do not fit into memory."""
    gigabytes = rows * width * 8 / 2**30
    if gigabytes > GIGABYTES:
        raise UserError(
            f"the query 'spread' would have to cluster {gigabytes:.1f} GB of gradients, and {GIGABYTES:g} GB "
            "are the most: set query.knobs.space=features, or query.name=badge, which never builds them"
        )


def _single(rows: Rows, labelled: Rows, cosine: float, least: int) -> Tensor:
    """Indices of rows that are no twin of one before them or of one bought; at least so many, twins last."""
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
    """How far each row is from the nearest one bought."""
    own, known = (some.features.flatten(1).double() for some in (rows, labelled))
    return torch.cdist(own, known).amin(1)
