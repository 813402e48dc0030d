"""Tools for queries that compare samples: location order, distances in chunks, lazy greedy selection.

Samples are first sorted by location (image, pixel), so the results do not depend on the order of the pool, to
the last bit. Pairwise tables are only ever built in chunks.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.rows import Deferred, Rows

AT_ONCE = 2**22  # elements per chunk: a few dozen megabytes with temporaries
CENTRES = 1024  # centres compared with a chunk at once
FEW = 64  # samples updated first when searching for the next greedy pick
TWINS = 1e-12  # squared distances below this fraction of the squared norms are rounding: duplicates
GIGABYTES = 4.0  # maximum size of lazily computed features, in units of 2**30 bytes
FEWER = "query.params.among, the number of candidates considered"


def by_address(rows: Rows, some: Tensor | None = None) -> Tensor:
    """Return the indices of all or some samples, sorted by image and then by pixel."""
    order = torch.arange(len(rows), device=rows.image.device) if some is None else some
    order = order[rows.position[order].argsort(stable=True)]
    return order[rows.image[order].argsort(stable=True)]


def in_order(rows: Rows, order: Tensor) -> Rows:
    """Return the samples in the given order, without a copy if they already are."""
    return rows if torch.equal(order, torch.arange(len(rows), device=order.device)) else rows[order]


def features_of(rows: Rows, query: str, fewer: str = FEWER) -> Tensor:
    """Return the features of the samples, ``(R, D)``.

    Args:
        rows: at least one sample.
        query: name of the query, for the message.
        fewer: parameters that reduce the number of features in memory, for the message.

    Raises:
        UserError: If the features are computed lazily and are larger than `GIGABYTES`.
    """
    if isinstance(rows.columns.get("features"), Deferred):
        width = rows[torch.zeros(1, dtype=torch.long, device=rows.image.device)].features.flatten(1).shape[1]
        gigabytes = len(rows) * width * 4 / 2**30
        if gigabytes > GIGABYTES:
            what, remedy = " of one image", "task.unit=superpixel or task.unit=image"
            if rows.shape is None:
                what, remedy = "", fewer
            raise UserError(
                f"the query {query!r} needs {gigabytes:.1f} GB of features{what}; the maximum is "
                f"{GIGABYTES:g} GB. To fix it: set {remedy}, or choose another query.name"
            )
    features = rows.features.flatten(1).contiguous()
    features = features if features.dtype == torch.float64 else features.float()
    if not bool(features.sum().isfinite()):
        raise ValueError(f"the query {query!r} got non-finite features (NaN or infinity); check the model")
    return features


def pieces(count: int, width: int) -> Iterator[slice]:
    """Yield slices of ``count`` rows of the given width, each of at most `AT_ONCE` elements."""
    size = max(1, AT_ONCE // max(1, width))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def squared_to_nearest(
    rows: Sequence[Tensor], centres: Sequence[Tensor], lengths: Tensor | None = None
) -> Tensor:
    """Squared Euclidean distance of each point to its nearest centre, ``(n,)`` in float64.

    A point may be the outer product of several vectors, which is never formed: inner products of outer
    products are products of inner products. Duplicates have a distance of exactly 0. Without centres all
    distances are infinite.

    Args:
        rows: one tensor ``(n, D)`` per factor.
        centres: one tensor ``(k, D)`` per factor.
        lengths: squared norms of the centres, ``(k,)``, if already computed.
    """
    count, width = len(rows[0]), sum(factor.shape[1] for factor in rows)
    found = torch.full((count,), torch.inf, dtype=torch.float64, device=rows[0].device)
    for start in range(0, len(centres[0]), CENTRES):
        some = [factor[start : start + CENTRES].double() for factor in centres]
        known = squared_length(some) if lengths is None else lengths[start : start + CENTRES]
        for piece in pieces(count, width + len(known)):
            part = [factor[piece].double() for factor in rows]
            both = squared_length(part)[:, None] + known
            squared = both - 2 * _product([x @ c.T for x, c in zip(part, some, strict=True)])
            squared.masked_fill_(squared <= TWINS * both, 0.0)
            found[piece] = torch.minimum(found[piece], squared.amin(1))
    return found


def squared_length(factors: Sequence[Tensor]) -> Tensor:
    """Squared norm of each outer product, ``(n,)``."""
    return _product([factor.square().sum(1) for factor in factors])


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


class Free:
    """Samples that can be picked: each once, and overlapping ones only when no other is left."""

    def __init__(self, rows: Rows) -> None:
        self.open = torch.ones(len(rows), dtype=torch.bool, device=rows.image.device)
        self._left = self.open.clone()
        self._rows = rows if rows.apart and rows.shape is not None else None

    def take(self, pick: int) -> bool:
        """Close a sample and those that overlap it. Return whether skipped samples were reopened."""
        self.open[pick] = self._left[pick] = False
        if self._rows is None:
            return False
        self.open &= ~_overlapping(self._rows, pick)
        if bool(self.open.any()):
            return False
        self.open = self._left.clone()
        return True


def _overlapping(rows: Rows, pick: int) -> Tensor:
    assert rows.shape is not None
    y, x = rows.position // rows.shape[1], rows.position % rows.shape[1]
    near = ((y - y[pick]).abs() <= rows.apart) & ((x - x[pick]).abs() <= rows.apart)
    return near & (rows.image == rows.image[pick])


def greedy(
    rows: Rows,
    count: int,
    bound: Tensor,
    refresh: Callable[[Tensor], Tensor],
    taken: Callable[[int], None],
    first: int | None = None,
    enough: float = -math.inf,
) -> Tensor:
    """Lazy greedy selection: pick the highest value, update, repeat; ties go to the first.

    Values may only decrease from pick to pick. A stale value is then an upper bound, and only the samples
    with the highest bounds are recomputed. The picks equal those of recomputing all values after every pick.

    Args:
        rows: the candidates, in location order.
        count: number of picks, at most the number of candidates.
        bound: ``(n,)``, the values before the first pick or upper bounds of them; overwritten.
        refresh: function from indices to their values after the picks so far.
        taken: called with each pick.
        first: the first pick, if it is given.
        enough: stop early when no value is above this.
    """
    free, picks = Free(rows), list[int]()
    fresh = torch.zeros(len(bound), dtype=torch.bool, device=bound.device)
    while len(picks) < count:
        pick = _leader(bound, fresh, free.open, refresh) if first is None or picks else first
        if float(bound[pick]) <= enough:
            break
        picks.append(pick)
        taken(pick)
        free.take(pick)
        fresh.fill_(False)
    return torch.tensor(picks, dtype=torch.long, device=bound.device)


def _leader(bound: Tensor, fresh: Tensor, open_: Tensor, refresh: Callable[[Tensor], Tensor]) -> int:
    running, many = bound.masked_fill(~open_, -torch.inf), FEW
    while True:
        leader = int(running.argmax())  # ties go to the first
        if bool(fresh[leader]):
            return leader
        # Also update likely next leaders. The batch grows each time, which keeps the iterations few.
        some = running.topk(min(many, len(running)), sorted=False).indices
        some = torch.cat([some, some.new_tensor([leader])]).unique()
        some = some[~fresh[some] & open_[some]]
        bound[some] = refresh(some)
        running[some], fresh[some] = bound[some], True
        many *= 4
