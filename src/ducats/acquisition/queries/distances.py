"""Tools for queries that compare samples: location order, distances in chunks, lazy greedy selection.

Samples are first sorted by location (image, pixel), so the results do not depend on the order of the pool, to
the last bit. Pairwise tables are only ever built in chunks.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ducats.acquisition.samples import LazyColumn, SampleTable
from ducats.utils.errors import UserError

ELEMENTS_PER_CHUNK = 2**22  # elements per chunk: a few dozen megabytes with temporaries
CENTRES_PER_CHUNK = 1024  # centres compared with a chunk at once
SIMILARITIES_PER_CHUNK = 2**24  # similarities computed at once
COLUMNS_PER_CHUNK = 2**16  # samples compared with a chunk at once
INITIAL_REFRESH_SIZE = 64  # samples updated first when searching for the next greedy pick
DUPLICATE_RTOL = 1e-12  # squared distances below this fraction of the squared norms are rounding: duplicates
MAX_LAZY_FEATURE_GIB = 4.0  # maximum size of lazily computed features, in units of 2**30 bytes
SUBSAMPLE_HINT = "query.params.subsample, the number of candidates considered"


def sort_by_location(samples: SampleTable, indices: Tensor | None = None) -> Tensor:
    """Return the indices of all or some samples, sorted by image and then by pixel."""
    order = torch.arange(len(samples), device=samples.image.device) if indices is None else indices
    order = order[samples.position[order].argsort(stable=True)]
    return order[samples.image[order].argsort(stable=True)]


def reorder(samples: SampleTable, order: Tensor) -> SampleTable:
    """Return the samples in the given order, without a copy if they already are."""
    return samples if torch.equal(order, torch.arange(len(samples), device=order.device)) else samples[order]


def load_features(samples: SampleTable, query: str, reduce_hint: str = SUBSAMPLE_HINT) -> Tensor:
    """Return the features of the samples, ``(R, D)``.

    Args:
        samples: at least one sample.
        query: name of the query, for the message.
        reduce_hint: parameters that reduce the number of features in memory, for the message.

    Raises:
        UserError: If the features are computed lazily and are larger than `MAX_LAZY_FEATURE_GIB`.
    """
    if isinstance(samples.columns.get("features"), LazyColumn):
        gigabytes = len(samples) * feature_width(samples) * 4 / 2**30
        if gigabytes > MAX_LAZY_FEATURE_GIB:
            scope, remedy = " of one image", "task.unit=superpixel or task.unit=image"
            if samples.shape is None:
                scope, remedy = "", reduce_hint
            raise UserError(
                f"the query {query!r} needs {gigabytes:.1f} GB of features{scope}; the maximum is "
                f"{MAX_LAZY_FEATURE_GIB:g} GB. To fix it: set {remedy}, or choose another query.name"
            )
    features = samples.features.flatten(1).contiguous()
    features = features if features.dtype == torch.float64 else features.float()
    if not bool(features.sum().isfinite()):
        raise ValueError(f"the query {query!r} got non-finite features (NaN or infinity); check the model")
    return features


def feature_width(samples: SampleTable) -> int:
    """Return the width of the features; computes those of one sample."""
    one = samples[torch.zeros(1, dtype=torch.long, device=samples.image.device)]
    return one.features.flatten(1).shape[1]


def chunk_slices(count: int, width: int) -> Iterator[slice]:
    """Yield slices of ``count`` rows of the given width, each of at most `ELEMENTS_PER_CHUNK` elements."""
    size = max(1, ELEMENTS_PER_CHUNK // max(1, width))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def squared_distance_to_nearest(
    factors: Sequence[Tensor], centre_factors: Sequence[Tensor], centre_squared_norms: Tensor | None = None
) -> Tensor:
    """Squared Euclidean distance of each point to its nearest centre, ``(n,)`` in float64.

    A point may be the outer product of several vectors, which is never formed: inner products of outer
    products are products of inner products. Duplicates have a distance of exactly 0. Without centres all
    distances are infinite.

    Args:
        factors: one tensor ``(n, D)`` per factor.
        centre_factors: one tensor ``(k, D)`` per factor.
        centre_squared_norms: squared norms of the centres, ``(k,)``, if already computed.
    """
    count, width = len(factors[0]), sum(factor.shape[1] for factor in factors)
    squared_distance = torch.full((count,), torch.inf, dtype=torch.float64, device=factors[0].device)
    for start in range(0, len(centre_factors[0]), CENTRES_PER_CHUNK):
        centre_chunk = [factor[start : start + CENTRES_PER_CHUNK].double() for factor in centre_factors]
        centre_norms = (
            squared_norm(centre_chunk)
            if centre_squared_norms is None
            else centre_squared_norms[start : start + CENTRES_PER_CHUNK]
        )
        for chunk in chunk_slices(count, width + len(centre_norms)):
            chunk_factors = [factor[chunk].double() for factor in factors]
            norm_sums = squared_norm(chunk_factors)[:, None] + centre_norms
            squared = norm_sums - 2 * _product(
                [x @ c.T for x, c in zip(chunk_factors, centre_chunk, strict=True)]
            )
            squared.masked_fill_(squared <= DUPLICATE_RTOL * norm_sums, 0.0)
            squared_distance[chunk] = torch.minimum(squared_distance[chunk], squared.amin(1))
    return squared_distance


def squared_norm(factors: Sequence[Tensor]) -> Tensor:
    """Squared norm of each outer product, ``(n,)``."""
    return _product([factor.square().sum(1) for factor in factors])


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


class AvailableSamples:
    """Samples that can be picked: each once, and overlapping ones only when no other is left."""

    def __init__(self, samples: SampleTable) -> None:
        self.mask = torch.ones(len(samples), dtype=torch.bool, device=samples.image.device)
        self._unpicked = self.mask.clone()
        self._overlap_samples = samples if samples.min_distance and samples.shape is not None else None

    def mark_picked(self, pick: int) -> bool:
        """Close a sample and those that overlap it. Return whether skipped samples were reopened."""
        self.mask[pick] = self._unpicked[pick] = False
        if self._overlap_samples is None:
            return False
        self.mask &= ~_overlapping(self._overlap_samples, pick)
        if bool(self.mask.any()):
            return False
        self.mask = self._unpicked.clone()
        return True


def _overlapping(samples: SampleTable, pick: int) -> Tensor:
    assert samples.shape is not None
    y, x = samples.position // samples.shape[1], samples.position % samples.shape[1]
    near = ((y - y[pick]).abs() <= samples.min_distance) & ((x - x[pick]).abs() <= samples.min_distance)
    return near & (samples.image == samples.image[pick])


def lazy_greedy(
    samples: SampleTable,
    count: int,
    bound: Tensor,
    refresh: Callable[[Tensor], Tensor],
    on_pick: Callable[[int], None],
    first: int | None = None,
    stop_value: float = -math.inf,
    tie_tolerance: float = 0.0,
) -> Tensor:
    """Lazy greedy selection: pick the highest value, update, repeat; ties go to the first.

    Values may only decrease from pick to pick. A stale value is then an upper bound, and only the samples
    with the highest bounds are recomputed. The picks equal those of recomputing all values after every pick.

    Args:
        samples: the candidates, in location order.
        count: number of picks, at most the number of candidates.
        bound: ``(n,)``, the values before the first pick or upper bounds of them; overwritten.
        refresh: function from indices to their values after the picks so far.
        on_pick: called with each pick.
        first: the first pick, if it is given.
        stop_value: stop early when no value is above this.
        tie_tolerance: values that differ by at most this are ties; above 0 if values are not exact.
    """
    available, picks = AvailableSamples(samples), list[int]()
    fresh = torch.zeros(len(bound), dtype=torch.bool, device=bound.device)
    while len(picks) < count:
        pick = first if first is not None and not picks else None
        if pick is None:
            pick = _refreshed_argmax(bound, fresh, available.mask, refresh, tie_tolerance)
        if float(bound[pick]) <= stop_value:
            break
        picks.append(pick)
        on_pick(pick)
        available.mark_picked(pick)
        fresh.fill_(False)
    return torch.tensor(picks, dtype=torch.long, device=bound.device)


def _refreshed_argmax(
    bound: Tensor,
    fresh: Tensor,
    available: Tensor,
    refresh: Callable[[Tensor], Tensor],
    tie_tolerance: float,
) -> int:
    upper_bounds, batch_size = bound.masked_fill(~available, -torch.inf), INITIAL_REFRESH_SIZE
    while True:
        leader = highest = int(upper_bounds.argmax())  # ties go to the first
        if tie_tolerance:
            leader = int((upper_bounds >= upper_bounds[highest] - tie_tolerance).byte().argmax())
        if bool(fresh[highest] & fresh[leader]):
            return leader
        # Also update likely next leaders. The batch grows each time, which keeps the iterations few.
        stale = upper_bounds.topk(min(batch_size, len(upper_bounds)), sorted=False).indices
        stale = torch.cat([stale, stale.new_tensor([leader])]).unique()
        stale = stale[~fresh[stale] & available[stale]]
        bound[stale] = refresh(stale)
        upper_bounds[stale], fresh[stale] = bound[stale], True
        batch_size *= 4


def nearest_neighbours(
    features: Tensor, neighbour_pool: Tensor, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the nearest neighbours of each sample by cosine, and their cosines, ``(rows, K)``, in chunks.

    Args:
        features: ``(R, D)``, of unit norm.
        neighbour_pool: ascending indices of the samples that can be neighbours; a sample is not its own
            neighbour.
        count: number of neighbours; all others if there are fewer.
    """
    device, count = features.device, min(count, len(neighbour_pool) - 1)
    own_column = torch.full((len(features),), -1, device=device)
    own_column[neighbour_pool] = torch.arange(len(neighbour_pool), device=device)
    others = features if len(neighbour_pool) == len(features) else features[neighbour_pool]
    rows = max(1, SIMILARITIES_PER_CHUNK // max(1, min(len(others), COLUMNS_PER_CHUNK)))
    for chunk, own in zip(features.split(rows), own_column.split(rows), strict=True):
        best = features.new_empty(len(chunk), 0)
        best_columns = torch.empty(len(chunk), 0, dtype=torch.long, device=device)
        for start in range(0, len(others), COLUMNS_PER_CHUNK):
            cosine = chunk @ others[start : start + COLUMNS_PER_CHUNK].T
            is_here = ((own >= start) & (own < start + COLUMNS_PER_CHUNK)).nonzero().squeeze(1)
            cosine[is_here, own[is_here] - start] = -math.inf
            found = cosine.topk(min(count, cosine.shape[1]), 1)
            best = torch.cat([best, found.values], 1)
            best_columns = torch.cat([best_columns, found.indices + start], 1)
            if best.shape[1] > count:
                best, kept = best.topk(count, 1)
                best_columns = best_columns.gather(1, kept)
        yield neighbour_pool[best_columns], best
