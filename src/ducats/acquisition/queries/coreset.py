"""CoreSet (Sener and Savarese, ICLR 2018): greedy k-centre, so no candidate is far from a label."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ducats.acquisition.queries.distances import (
    SUBSAMPLE_HINT,
    chunk_slices,
    lazy_greedy,
    load_features,
    reorder,
    squared_distance_to_nearest,
)
from ducats.acquisition.queries.spec import QuerySpec
from ducats.acquisition.queries.subsampling import SubsampleBy, needs_with_subsampling, subsample_candidates
from ducats.acquisition.samples import QueryContext, SampleTable
from ducats.utils.errors import UserError
from ducats.utils.randomness import uniform_per_location

REFRESH_GROUP_SIZE = 256  # samples of similar staleness updated together
CENTRES_PER_BLOCK = 128  # centres compared with a shard before covered samples are dropped
COVERAGE_SAMPLE_SIZE = 2048  # samples used to estimate how many samples each centre covers
FLOAT32_DISTANCE_RTOL = 1e-5  # bound on float32 errors of squared distances, relative to the squared norms


def coreset(
    context: QueryContext,
    *,
    centres: Literal["labelled", "source_and_labelled"] = "labelled",
    shards: int = 1,
    subsample: int | None = None,
    subsample_by: SubsampleBy = "entropy_weighted",
) -> Tensor:
    """Repeatedly select the candidate farthest from all labelled and selected samples (CoreSet).

    Distances are between features. If nothing is labelled yet, the first pick is the candidate nearest to the
    mean of the candidates.

    Args:
        centres: initial centres: the labelled target samples, with or without the source images.
        shards: if above 1, split the candidates at random, run greedy k-centre in each shard and again on the
            union of their picks. Only one shard of features is in memory at a time. The guarantee on the
            largest distance to a label is then 4 times the optimum instead of 2.
        subsample: number of candidates to consider; None: all.
        subsample_by: ``entropy_weighted`` samples them with probability proportional to the entropy;
            ``highest_entropy`` takes the highest entropies.
    """
    if shards < 1:
        raise ValueError(f"query.params.shards must be at least 1, not {shards}")
    labelled_features = [load_features(group, "coreset") for group in _labelled_tables(context, centres)]
    order, _ = subsample_candidates(context, subsample, subsample_by)
    count = min(context.budget, len(order))
    if count == 0:
        return order[:0]
    samples = reorder(context.candidates, order)
    first = None
    if shards > 1:
        representatives, first = _shard_representatives(
            samples, labelled_features, count, shards, context.generator
        )
        order, samples = order[representatives], samples[representatives]
    return order[_greedy_k_centre(samples, labelled_features, count, first=first)]


def coreset_source_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the source columns that `coreset` reads."""
    return ("features",) if params.get("centres") == "source_and_labelled" else ()


def _labelled_tables(context: QueryContext, centres: str) -> list[SampleTable]:
    """Non-empty tables of initial centres."""
    if centres not in ("labelled", "source_and_labelled"):
        raise ValueError(f"query.params.centres must be labelled or source_and_labelled, not {centres}")
    groups = [context.labelled]
    if centres == "source_and_labelled":
        if context.source is None:
            raise UserError(
                "the query 'coreset' cannot use the source in segmentation; set query.params.centres=labelled"
            )
        groups.append(context.source)
    return [group for group in groups if len(group)]


def _greedy_k_centre(
    samples: SampleTable,
    labelled_features: Sequence[Tensor],
    count: int,
    *,
    first: int | None = None,
    squared_radius: float = -torch.inf,
) -> Tensor:
    """Greedy k-centre: indices of the picks, in order.

    Args:
        samples: the candidates, in location order.
        labelled_features: features of the labelled samples, one tensor per table.
        first: the first pick; None: the farthest from the labelled samples, or the nearest to the mean.
        squared_radius: stop when all squared distances to a label or a pick are at most this.
    """
    features = load_features(
        samples, "coreset", f"{SUBSAMPLE_HINT}, or query.params.shards, the number of shards"
    )
    bound = torch.full((len(samples),), torch.inf, dtype=torch.float64, device=features.device)
    for group in labelled_features:
        bound = torch.minimum(bound, squared_distance_to_nearest([features], [group.to(features.device)]))
    if first is None and not labelled_features:
        mean = features.mean(0, dtype=torch.float64)[None]
        first = int(squared_distance_to_nearest([features], [mean]).argmin())
    cover = _CoverDistances(features, bound, count)
    return lazy_greedy(samples, count, bound, cover.refresh, cover.add, first, squared_radius)


def _shard_representatives(
    samples: SampleTable,
    labelled_features: Sequence[Tensor],
    count: int,
    shards: int,
    generator: torch.Generator,
) -> tuple[Tensor, int | None]:
    """Representatives of all shards (their greedy picks, in location order), and the first pick among them.

    After ``count`` picks in the first shard, some sample is at a distance ``r`` from all of them. For any
    choice of ``count`` samples, one of these ``count + 1`` is at least ``r / 2`` away, as two of them share a
    nearest choice. So samples of other shards within ``r`` of a pick of the first are already covered as well
    as greedy picks guarantee, and are dropped. The rest become representatives, or ``count`` greedy picks of
    them if they are more. Every sample is then within twice the optimal radius of a representative.
    """
    random_keys = uniform_per_location(generator, samples.image, samples.position)
    shard_indices = [shard for shard in _split((random_keys * shards).long(), shards) if len(shard)]
    first_shard_picks = shard_indices[0][
        _greedy_k_centre(samples[shard_indices[0]], labelled_features, min(count + 1, len(shard_indices[0])))
    ]
    first, squared_radius = (None if labelled_features else int(first_shard_picks[0])), -torch.inf
    centres = [load_features(samples[first_shard_picks[:count]], "coreset"), *labelled_features]
    if len(first_shard_picks) > count:
        last = load_features(samples[first_shard_picks[count:]], "coreset")
        squared_radius = min(
            float(squared_distance_to_nearest([last], [some.to(last.device)])) for some in centres
        )
    some = shard_indices[0][random_keys[shard_indices[0]].argsort(stable=True)[:COVERAGE_SAMPLE_SIZE]]
    ordered = _order_by_coverage(centres, load_features(samples[some], "coreset"), squared_radius)
    representatives_per_shard = [first_shard_picks[:count]]
    for shard in shard_indices[1:]:
        uncovered = shard[_uncovered(load_features(samples[shard], "coreset"), ordered, squared_radius)]
        if len(uncovered) > count:
            uncovered = uncovered[
                _greedy_k_centre(samples[uncovered], centres, count, squared_radius=squared_radius)
            ]
        representatives_per_shard.append(uncovered)
    representatives = torch.cat(representatives_per_shard).sort().values
    return representatives, None if first is None else int((representatives == first).nonzero())


def _split(shard: Tensor, shards: int) -> Iterator[Tensor]:
    """Ascending indices of the samples of each shard."""
    return (part for part in shard.argsort(stable=True).split(shard.bincount(minlength=shards).tolist()))


def _order_by_coverage(centres: Sequence[Tensor], sample: Tensor, squared_radius: float) -> Tensor:
    """The centres as one table, ``(k, D)``, ordered by how much of a sample they cover.

    Greedy set cover: each centre covers the most of what earlier ones leave uncovered. Most samples are then
    covered by the first few centres. The first greedy k-centre picks are outliers and cover hardly any.
    """
    sample = sample.float()
    table = torch.cat([some.to(sample.device).float() for some in centres])
    is_covered = torch.cat(
        [torch.cdist(sample, some).square() <= squared_radius for some in table.split(CENTRES_PER_BLOCK)], 1
    )
    gain, selected = is_covered.sum(0), list[int]()
    while int(gain.max()) > 0:
        selected.append(int(gain.argmax()))
        newly_covered = is_covered[:, selected[-1]].clone()
        gain -= is_covered[newly_covered].sum(0)
        is_covered[newly_covered] = False
    first = torch.tensor(selected, dtype=torch.long, device=table.device)
    others = torch.ones(len(table), dtype=torch.bool, device=table.device)
    others[first] = False
    return torch.cat([table[first], table[others]])


def _uncovered(features: Tensor, centres: Tensor, squared_radius: float) -> Tensor:
    """Indices of samples whose squared distance to all centres may, given rounding, exceed the radius."""
    blocks = [(block, block.square().sum(1)) for block in centres.split(CENTRES_PER_BLOCK)]
    uncovered = []
    for chunk in chunk_slices(len(features), features.shape[1] + CENTRES_PER_BLOCK):
        rows = features[chunk].float()
        indices = torch.arange(chunk.start, chunk.stop, device=features.device)
        squared_norms = (1 + FLOAT32_DISTANCE_RTOL) * rows.square().sum(1)
        for block, block_squared_norms in blocks:
            block_norms = (1 + FLOAT32_DISTANCE_RTOL) * block_squared_norms
            partial = torch.addmm(block_norms, rows, block.T, alpha=-2).amin(1)
            is_covered = partial + squared_norms <= squared_radius
            if bool(is_covered.any()):
                rows, indices = rows[~is_covered], indices[~is_covered]
                squared_norms = squared_norms[~is_covered]
        uncovered.append(indices)
    return torch.cat(uncovered)


class _CoverDistances:
    """Squared distance of each sample to the nearest centre, updated on demand."""

    def __init__(self, features: Tensor, squared_distances: Tensor, count: int) -> None:
        self._features, self._squared_distances = features, squared_distances
        self._picked = features.new_empty(count, features.shape[1])
        self._n_picks = 0
        self._n_applied_picks = torch.zeros(len(features), dtype=torch.long, device=features.device)

    def add(self, pick: int) -> None:
        self._picked[self._n_picks] = self._features[pick]
        self._n_picks += 1

    def refresh(self, index: Tensor) -> Tensor:
        squared_distances = self._squared_distances[index]
        by_staleness = self._n_applied_picks[index].argsort(stable=True)
        for group in by_staleness.split(REFRESH_GROUP_SIZE):
            new_picks = self._picked[int(self._n_applied_picks[index[group[0]]]) : self._n_picks]
            new = squared_distance_to_nearest([self._features[index[group]]], [new_picks])
            squared_distances[group] = torch.minimum(squared_distances[group], new)
        self._n_applied_picks[index] = self._n_picks
        return squared_distances


CORESET_SPEC = QuerySpec(
    coreset,
    ("features",),
    needs_with_subsampling("features"),
    source_needs_fn=coreset_source_needs,
    reason="This {unit} differs from those that already have a label.",
)
