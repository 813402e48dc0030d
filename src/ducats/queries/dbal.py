"""DBAL (de Mathelin et al., ICLR 2022): samples that are uncertain and far from any label.

Greedy weighted k-medoids: each pick minimises the sum over samples of uncertainty times Manhattan distance to
the nearest labelled sample of the source or the target.
"""

import torch
from torch import Tensor

from ducats.queries.distances import by_address, features_of, greedy, in_order, pieces
from ducats.randomness import draw_per_address
from ducats.rows import Slate

KEPT = 2**29  # maximum bytes of cached pairwise distances; above it they are recomputed


def dbal(slate: Slate, *, subset: int = 5000, sweeps: int = 0) -> Tensor:
    """Minimise the distance of uncertain samples to the nearest label, by weighted k-medoids (DBAL).

    Args:
        subset: number of candidates, sampled at random, to cover and to select from; at least twice the
            budget.
        sweeps: maximum number of passes that move each pick to the medoid of the samples nearest to it.
    """
    if subset < 1 or sweeps < 0:
        raise ValueError(
            f"query.params.subset must be at least 1, not {subset}, and "
            f"query.params.sweeps must be at least 0, not {sweeps}"
        )
    order = by_address(slate.candidates)
    count = min(slate.budget, len(order))
    if count == 0:
        return order[:0]
    order = _part(slate, order, max(subset, 2 * count))
    rows = in_order(slate.candidates, order)
    features = features_of(rows, "dbal", "query.params.subset, the number of candidates considered")
    cover = _Cover(features, 1 - rows.column("margin").double(), _to_labels(features, slate))
    everyone = torch.arange(len(rows), device=order.device)
    picks = greedy(rows, count, cover.gain(everyone), cover.gain, cover.add)
    return order[_refined(picks, cover, sweeps)]


def _part(slate: Slate, order: Tensor, size: int) -> Tensor:
    """Random subset of the candidates, in location order."""
    if len(order) <= size:
        return order
    rows = slate.candidates
    luck = draw_per_address(slate.generator, rows.image[order], rows.position[order])
    return order[luck.argsort(stable=True)[:size].sort().values]


def _to_labels(features: Tensor, slate: Slate) -> Tensor:
    """Manhattan distance of each sample to the nearest label, ``(n,)``."""
    found = torch.full((len(features),), torch.inf, dtype=torch.float64, device=features.device)
    for group in (slate.labelled, slate.source):
        if group is not None and len(group):
            others = features_of(group, "dbal").to(features.device)
            for piece in pieces(len(others), len(features)):
                found = torch.minimum(found, torch.cdist(features, others[piece], p=1).amin(1).double())
    # Without labels, use an upper bound of all distances: the first pick is then the weighted medoid.
    widest = 2 * float(torch.cdist(features, features[:1], p=1).max())
    return found.masked_fill(found.isinf(), widest)


class _Cover:
    """Distance of each sample to the nearest label or pick.

    Args:
        features: ``(n, D)``.
        weight: weight of each sample's distance, ``(n,)``.
        to_labels: distance to the nearest label, ``(n,)``.
    """

    def __init__(self, features: Tensor, weight: Tensor, to_labels: Tensor) -> None:
        self._features, self._weight, self.to_labels = features, weight, to_labels
        self._nearest = to_labels.clone()
        count = len(features)
        self._kept: Tensor | None = None
        if 4 * count**2 <= KEPT:
            self._kept = features.new_empty(count, count)
            for piece in pieces(count, count):
                self._kept[piece] = torch.cdist(features[piece], features, p=1)

    def distances(self, index: Tensor) -> Tensor:
        """Distances from the given samples to all, ``(k, n)``."""
        if self._kept is not None:
            return self._kept[index].double()
        return torch.cdist(self._features[index], self._features, p=1).double()

    def gain(self, index: Tensor) -> Tensor:
        """Decrease of the weighted sum if each of these samples were the next pick, ``(k,)``."""
        found = torch.empty(len(index), dtype=torch.float64, device=index.device)
        for piece in pieces(len(index), len(self._features)):
            nearer = (self._nearest - self.distances(index[piece])).clamp_(min=0)
            found[piece] = nearer.mul_(self._weight).sum(1)
        return found

    def add(self, pick: int) -> None:
        """Add a pick."""
        one = torch.tensor([pick], device=self._features.device)
        self._nearest = torch.minimum(self._nearest, self.distances(one)[0])

    def spread(self, members: Tensor) -> Tensor:
        """Weighted sum of the distances of each member to the other members."""
        parts = [
            self.distances(members[piece])[:, members].mul_(self._weight[members]).sum(1)
            for piece in pieces(len(members), len(self._features))
        ]
        return torch.cat(parts)

    def owner(self, picks: Tensor) -> Tensor:
        """Index of the pick nearest to each sample, ``(n,)``; -1 where a label is as near."""
        nearest = self.to_labels.clone()
        found = torch.full_like(nearest, -1, dtype=torch.long)
        for piece in pieces(len(picks), len(nearest)):
            distance, number = self.distances(picks[piece]).min(0)
            closer = distance < nearest
            found[closer], nearest[closer] = number[closer] + piece.start, distance[closer]
        found[picks] = torch.arange(len(picks), device=picks.device)  # or duplicates could become one pick
        return found


def _refined(picks: Tensor, cover: _Cover, sweeps: int) -> Tensor:
    """Move each pick to the medoid of its samples, repeatedly; the weighted sum never increases."""
    for _ in range(sweeps):
        owner, moved = cover.owner(picks), picks.clone()
        for number in range(len(picks)):
            members = (owner == number).nonzero().squeeze(1)
            moved[number] = members[cover.spread(members).argmin()]
        if torch.equal(moved, picks):
            break
        picks = moved
    return picks
