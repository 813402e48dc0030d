"""LADA's query (Sun et al., ICCV 2023): local context-aware sampling.

A candidate is worth a label where its neighbours predict other classes than it does, and one another.
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

GIGABYTES = 4.0  # (2**30 bytes) of features, at most
AT_ONCE = 2**24  # similarities per pass
PAIRS = 5e9  # similarities in all: all pairs of 70 000 candidates


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
    """One from each cluster of those whose neighbours disagree with them (LAS).

    Args:
        slate: the candidates.
        K: neighbours, by the cosine of the features.
        M: ``(1 + M)`` times the budget of highest disagreement are clustered.
        pairs: similarities to compute at most; if all pairs are more, neighbours are sought among as many
            candidates, drawn at random, as this leaves to each.
        exact: clustered candidates times budget, up to which k-means sees all at once; mini-batches beyond.
        among: how many candidates compete; None: all. Neighbours are still sought among all, or a random
            part of all: the fewer compete, the larger is the part that ``pairs`` allows.
        chosen: whether these are ``drawn``, with odds by their entropy, or the most ``uncertain`` ones.

    Raises:
        UserError: That is more than k-means can do: over CLUSTERS clusters, or over GIGABYTES of features.
    """
    if K < 1:
        raise ValueError(f"K must be at least 1, not {K}: a candidate is judged by its neighbours")
    if M < 0:
        raise ValueError(f"M must be at least 0, not {M}: a cluster needs a sample")
    own, _ = competing(slate, among, chosen)
    if slate.budget == 0 or len(own) <= slate.budget:
        return own[: slate.budget]
    others = _sought(slate.candidates, len(own), K, pairs, slate.generator)
    order = by_address(slate.candidates, torch.cat([own, others]).unique())
    rows = in_order(slate.candidates, order)
    check_feasible("las", rows, slate.budget, gigabytes=GIGABYTES, number=4, fewer="set query.knobs.among")
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
    """Among which rows neighbours are sought: all, or as many at random as ``pairs`` allows.

    Their own neighbours count, too. So where not all rows compete, as many are compared as compete and are
    sought among.
    """
    allowed = pairs / judged
    if judged < len(rows):
        allowed = (math.sqrt(judged**2 + 4 * pairs) - judged) / 2
    count = min(len(rows), max(K + 1, int(min(allowed, len(rows)))))
    drawn = draw_per_address(generator, rows.image, rows.position)
    return best(drawn, count, rows)


def propagated(features: Tensor, p: Tensor, among: Tensor, K: int) -> Tensor:
    """LAS's score of each row, ``(R,)``: its disagreement with its neighbours, and theirs with their own.

    ``Q_i = -sum_k w_k p_i . p_k`` over the K nearest, ``w_k`` their share of the similarity, and then once
    ``Q_i + sum_k w_k Q_k``.

    Args:
        features: ``(R, D)``, of length one.
        p: probabilities, ``(R, C)``.
        among: indices of the rows that can be neighbours, ascending.
        K: how many neighbours.
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
    """The K rows most like each other row, and their shares of the similarity: ``(R, K)`` both.

    Args:
        features: ``(R, D)``, of length one.
        among: indices of the rows that can be neighbours, ascending; none is its own.
        K: how many; all others, if there are fewer.
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
        # The cosine of features without a ReLU may be negative, and a share may not.
        alike.append(found.values.clamp(min=0))
    weight = torch.cat(alike)
    total = weight.sum(1, keepdim=True)
    return torch.cat(near), torch.where(total > 0, weight / total.clamp(min=1e-12), 1 / K)
