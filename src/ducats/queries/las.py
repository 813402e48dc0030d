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
from ducats.queries.among import Chosen, competing
from ducats.queries.clusters import EXACT, check_feasible, one_of_each
from ducats.queries.distances import by_address, features_of, in_order
from ducats.randomness import draw_per_address
from ducats.rows import Rows, Slate, best

GIGABYTES = 4.0  # maximum size of the features, in units of 2**30 bytes
AT_ONCE = 2**24  # similarities per pass
PAIRS = 5e9  # maximum number of similarities: all pairs of 70 000 candidates


def las(
    slate: Slate,
    *,
    K: int = 10,
    M: float = 10.0,
    pairs: float = PAIRS,
    exact: float = EXACT,
    among: int | None = None,
    chosen: Chosen = "uncertain",
) -> Tensor:
    """Select one sample per cluster of the candidates that disagree most with their neighbours (LAS).

    Args:
        K: number of neighbours, by cosine similarity of the features.
        M: cluster the ``(1 + M)`` times budget candidates with the highest disagreement.
        pairs: maximum number of similarities to compute. If all pairs are more, neighbours are searched in a
            random subset of the candidates.
        exact: limit of clustered candidates times budget for full k-means; above it, mini-batches are used.
        among: number of candidates to consider; None: all. Neighbours are still searched in all
            candidates, or in the random subset that ``pairs`` allows.
        chosen: ``drawn`` samples them with probability proportional to the entropy; ``uncertain`` takes the
            highest entropies.

    Raises:
        UserError: If there are more than `CLUSTERS` clusters or more than `GIGABYTES` of features.
    """
    if K < 1:
        raise ValueError(f"query.params.K must be at least 1, not {K}; it is the number of neighbours")
    if M < 0:
        raise ValueError(f"query.params.M must be at least 0, not {M}; every cluster needs a sample")
    own, _ = competing(slate, among, chosen)
    if slate.budget == 0 or len(own) <= slate.budget:
        return own[: slate.budget]
    others = _sought(slate.candidates, len(own), K, pairs, slate.generator)
    order = by_address(slate.candidates, torch.cat([own, others]).unique())
    rows = in_order(slate.candidates, order)
    check_feasible("las", rows, slate.budget, gigabytes=GIGABYTES, number=4, fewer="set query.params.among")
    features = F.normalize(features_of(rows, "las").float())
    p = dirichlet.expected_probability(rows.z.float())
    score = propagated(features, p, torch.isin(order, others).nonzero().squeeze(1), K)
    mine = torch.isin(order, own).nonzero().squeeze(1)
    places = replace(rows, columns={})[mine]
    kept = mine[best(score[mine], math.ceil((1 + M) * slate.budget - 1e-9), places)]
    if len(kept) <= slate.budget:
        return order[kept]
    even = torch.ones(len(kept))
    return order[kept[one_of_each(features[kept], even, slate.budget, slate.generator, exact=exact)]]


def _sought(rows: Rows, judged: int, K: int, pairs: float, generator: torch.Generator) -> Tensor:
    """Indices of the samples in which neighbours are searched: all, or a random subset that ``pairs`` allows.

    The score also needs the neighbours of neighbours. With a subsample, the similarities to compute are those
    of the subsample and of the neighbour candidates.
    """
    allowed = pairs / judged
    if judged < len(rows):
        allowed = (math.sqrt(judged**2 + 4 * pairs) - judged) / 2
    count = min(len(rows), max(K + 1, int(min(allowed, len(rows)))))
    drawn = draw_per_address(generator, rows.image, rows.position)
    return best(drawn, count, rows)


def propagated(features: Tensor, p: Tensor, among: Tensor, K: int) -> Tensor:
    """Compute the LAS score of each sample, ``(R,)``.

    ``Q_i = -sum_k w_k p_i . p_k`` over the K nearest neighbours, with normalised similarities ``w_k``. One
    propagation step then gives the score ``Q_i + sum_k w_k Q_k``.

    Args:
        features: ``(R, D)``, of unit norm.
        p: probabilities, ``(R, C)``.
        among: ascending indices of the samples that can be neighbours.
        K: number of neighbours.
    """
    near, weight = neighbours(features, among, K)
    q = torch.cat(
        [
            -(w * (own[:, None] * p[at]).sum(2)).sum(1)
            for own, at, w in zip(p.split(2**14), near.split(2**14), weight.split(2**14), strict=True)
        ]
    )
    return q + (weight * q[near]).sum(1)


def neighbours(features: Tensor, among: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Return the K nearest neighbours of each sample and their normalised similarities, both ``(R, K)``.

    Args:
        features: ``(R, D)``, of unit norm.
        among: ascending indices of the samples that can be neighbours; a sample is not its own neighbour.
        K: number of neighbours; all others if there are fewer.
    """
    device, K = features.device, min(K, len(among) - 1)
    column = torch.full((len(features),), -1, device=device)
    column[among] = torch.arange(len(among), device=device)
    others = features if len(among) == len(features) else features[among]
    near, alike = [], []
    for some, own in zip(
        features.split(step := max(1, AT_ONCE // len(among))), column.split(step), strict=True
    ):
        similarity = some @ others.T
        inside = (own >= 0).nonzero().squeeze(1)
        similarity[inside, own[inside]] = -math.inf
        found = similarity.topk(K, 1)
        near.append(among[found.indices])
        # The cosine of features without a ReLU may be negative, but a weight must not be.
        alike.append(found.values.clamp(min=0))
    weight = torch.cat(alike)
    total = weight.sum(1, keepdim=True)
    return torch.cat(near), torch.where(total > 0, weight / total.clamp(min=1e-12), 1 / K)
