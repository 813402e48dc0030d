"""DBAL (de Mathelin et al., ICLR 2022): samples that are uncertain and far from any label.

Greedy weighted k-medoids: each pick minimises the sum over samples of uncertainty times Manhattan distance to
the nearest labelled sample of the source or the target.
"""

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import (
    chunk_slices,
    lazy_greedy,
    load_features,
    reorder,
    sort_by_location,
)
from ducats.acquisition.queries.spec import UNCERTAINTIES, QuerySpec
from ducats.acquisition.samples import QueryContext
from ducats.utils.randomness import uniform_per_location

MAX_CACHED_DISTANCE_BYTES = 2**29  # maximum bytes of cached pairwise distances; above it they are recomputed


def dbal(context: QueryContext, *, subsample: int = 5000, medoid_passes: int = 0) -> Tensor:
    """Minimise the distance of uncertain samples to the nearest label, by weighted k-medoids (DBAL).

    Args:
        subsample: number of candidates, sampled at random, to cover and to select from; at least twice the
            budget.
        medoid_passes: maximum number of passes that move each pick to the medoid of its nearest samples.
    """
    if subsample < 1 or medoid_passes < 0:
        raise ValueError(
            f"query.params.subsample must be at least 1, not {subsample}, and "
            f"query.params.medoid_passes must be at least 0, not {medoid_passes}"
        )
    order = sort_by_location(context.candidates)
    count = min(context.budget, len(order))
    if count == 0:
        return order[:0]
    order = _random_subset(context, order, max(subsample, 2 * count))
    samples = reorder(context.candidates, order)
    features = load_features(samples, "dbal", "query.params.subsample, the number of candidates considered")
    cover = _LabelCoverage(
        features, 1 - samples.column("margin").double(), _distance_to_labels(features, context)
    )
    all_indices = torch.arange(len(samples), device=order.device)
    picks = lazy_greedy(samples, count, cover.gain(all_indices), cover.gain, cover.add)
    return order[_refine_medoids(picks, cover, medoid_passes)]


def _random_subset(context: QueryContext, order: Tensor, size: int) -> Tensor:
    """Random subset of the candidates, in location order."""
    if len(order) <= size:
        return order
    samples = context.candidates
    random_keys = uniform_per_location(context.generator, samples.image[order], samples.position[order])
    return order[random_keys.argsort(stable=True)[:size].sort().values]


def _distance_to_labels(features: Tensor, context: QueryContext) -> Tensor:
    """Manhattan distance of each sample to the nearest label, ``(n,)``."""
    distance = torch.full((len(features),), torch.inf, dtype=torch.float64, device=features.device)
    for group in (context.labelled, context.source):
        if group is not None and len(group):
            others = load_features(group, "dbal").to(features.device)
            for chunk in chunk_slices(len(others), len(features)):
                distance = torch.minimum(distance, torch.cdist(features, others[chunk], p=1).amin(1).double())
    # Without labels, use an upper bound of all distances: the first pick is then the weighted medoid.
    max_distance = 2 * float(torch.cdist(features, features[:1], p=1).max())
    return distance.masked_fill(distance.isinf(), max_distance)


class _LabelCoverage:
    """Distance of each sample to the nearest label or pick.

    Args:
        features: ``(n, D)``.
        weight: weight of each sample's distance, ``(n,)``.
        label_distance: distance to the nearest label, ``(n,)``.
    """

    def __init__(self, features: Tensor, weight: Tensor, label_distance: Tensor) -> None:
        self._features, self._weight, self.label_distance = features, weight, label_distance
        self._nearest = label_distance.clone()
        count = len(features)
        self._cached_distances: Tensor | None = None
        if 4 * count**2 <= MAX_CACHED_DISTANCE_BYTES:
            self._cached_distances = features.new_empty(count, count)
            for chunk in chunk_slices(count, count):
                self._cached_distances[chunk] = torch.cdist(features[chunk], features, p=1)

    def distances(self, index: Tensor) -> Tensor:
        """Distances from the given samples to all, ``(k, n)``."""
        if self._cached_distances is not None:
            return self._cached_distances[index].double()
        return torch.cdist(self._features[index], self._features, p=1).double()

    def gain(self, index: Tensor) -> Tensor:
        """Decrease of the weighted sum if each of these samples were the next pick, ``(k,)``."""
        gains = torch.empty(len(index), dtype=torch.float64, device=index.device)
        for chunk in chunk_slices(len(index), len(self._features)):
            nearer = (self._nearest - self.distances(index[chunk])).clamp_(min=0)
            gains[chunk] = nearer.mul_(self._weight).sum(1)
        return gains

    def add(self, pick: int) -> None:
        """Add a pick."""
        one = torch.tensor([pick], device=self._features.device)
        self._nearest = torch.minimum(self._nearest, self.distances(one)[0])

    def member_cost(self, members: Tensor) -> Tensor:
        """Weighted sum of the distances of each member to the other members."""
        costs = [
            self.distances(members[chunk])[:, members].mul_(self._weight[members]).sum(1)
            for chunk in chunk_slices(len(members), len(self._features))
        ]
        return torch.cat(costs)

    def nearest_pick(self, picks: Tensor) -> Tensor:
        """Index of the pick nearest to each sample, ``(n,)``; -1 where a label is as near."""
        nearest = self.label_distance.clone()
        pick_index = torch.full_like(nearest, -1, dtype=torch.long)
        for chunk in chunk_slices(len(picks), len(nearest)):
            distance, number = self.distances(picks[chunk]).min(0)
            closer = distance < nearest
            pick_index[closer], nearest[closer] = number[closer] + chunk.start, distance[closer]
        # Without this, duplicates could become one pick.
        pick_index[picks] = torch.arange(len(picks), device=picks.device)
        return pick_index


def _refine_medoids(picks: Tensor, cover: _LabelCoverage, medoid_passes: int) -> Tensor:
    """Move each pick to the medoid of its samples, repeatedly; the weighted sum never increases."""
    for _ in range(medoid_passes):
        nearest_pick, moved = cover.nearest_pick(picks), picks.clone()
        for number in range(len(picks)):
            members = (nearest_pick == number).nonzero().squeeze(1)
            moved[number] = members[cover.member_cost(members).argmin()]
        if torch.equal(moved, picks):
            break
        picks = moved
    return picks


DBAL_SPEC = QuerySpec(
    dbal, needs=("features", "margin"), source_needs=("features",), explained_by=UNCERTAINTIES
)
