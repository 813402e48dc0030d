"""What queries share that look at how rows lie to each other: an order, distances in pieces, greedy picks.

Everything starts from rows in the order of their addresses, so the order of the pool has no say, to the last
bit. No table has more than a piece of (rows x rows) at a time.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.rows import Deferred, Rows

AT_ONCE = 2**22  # numbers in a piece: some dozen megabytes with its temporaries
CENTRES = 1024  # compared with a piece at once
FEW = 64  # rows that are brought up to date first, when the leader of a greedy choice is sought
TWINS = 1e-12  # squared distances below this share of the squared lengths are rounding: the rows are the same
GIGABYTES = 4.0  # (2**30 bytes) of features that are computed or read when they are asked for, at most
FEWER = "query.knobs.among, how many of the candidates compete"


def by_address(rows: Rows, some: Tensor | None = None) -> Tensor:
    """Indices of the rows, or some of them, in the order of their addresses, image by image."""
    order = torch.arange(len(rows), device=rows.image.device) if some is None else some
    order = order[rows.position[order].argsort(stable=True)]
    return order[rows.image[order].argsort(stable=True)]


def in_order(rows: Rows, order: Tensor) -> Rows:
    """The rows in that order; the same table, not a copy, where they are so already."""
    return rows if torch.equal(order, torch.arange(len(rows), device=order.device)) else rows[order]


def features_of(rows: Rows, query: str, fewer: str = FEWER) -> Tensor:
    """What the last layer sees of the rows, ``(R, D)``.

    Args:
        rows: one or more.
        query: its name, for the message.
        fewer: which knobs have fewer images' features read at a time, for the message.

    Raises:
        UserError: They would have to be computed first, and are more than GIGABYTES.
    """
    if isinstance(rows.columns.get("features"), Deferred):
        width = rows[torch.zeros(1, dtype=torch.long, device=rows.image.device)].features.flatten(1).shape[1]
        gigabytes = len(rows) * width * 4 / 2**30
        if gigabytes > GIGABYTES:
            what, remedy = " of one image", "task.unit=superpixel or task.unit=image"
            if rows.shape is None:
                what, remedy = "", fewer
            raise UserError(
                f"the query {query!r} would need {gigabytes:.1f} GB of features{what}, and "
                f"{GIGABYTES:g} GB are the most: set {remedy}, or choose another query.name"
            )
    features = rows.features.flatten(1).contiguous()
    features = features if features.dtype == torch.float64 else features.float()
    if not bool(features.sum().isfinite()):
        raise ValueError(f"the query {query!r} got features that are no finite numbers: the model is broken")
    return features


def pieces(count: int, width: int) -> Iterator[slice]:
    """Slices of ``count`` rows, each of at most AT_ONCE numbers."""
    size = max(1, AT_ONCE // max(1, width))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def squared_to_nearest(
    rows: Sequence[Tensor], centres: Sequence[Tensor], lengths: Tensor | None = None
) -> Tensor:
    """Squared Euclidean distance of each row to its nearest centre, ``(n,)`` in float64.

    A row may be the outer product of several vectors, which is never formed: inner products of outer
    products are products of inner products. Twins are exactly 0 apart, and without a centre all are inf.

    Args:
        rows: one table ``(n, D)``, or one for each factor.
        centres: as many tables ``(k, D)``.
        lengths: squared lengths of the centres, ``(k,)``, if they are known.
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
    """Of rows that are outer products, ``(n,)``."""
    return _product([factor.square().sum(1) for factor in factors])


def _product(factors: Sequence[Tensor]) -> Tensor:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


class Free:
    """Which rows can be picked: each once, and those that overlap a pick only when no other is left."""

    def __init__(self, rows: Rows) -> None:
        self.open = torch.ones(len(rows), dtype=torch.bool, device=rows.image.device)
        self._left = self.open.clone()
        self._rows = rows if rows.apart and rows.shape is not None else None

    def take(self, pick: int) -> bool:
        """Close a row and what overlaps it; whether rows that were passed over are open again."""
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
    """Pick rows one by one, each time the one of highest value then, the first of equals.

    Values may only fall from pick to pick. So an old value is a bound, and only rows whose bound is above all
    else are computed anew: the picks are those of computing every row every time.

    Args:
        rows: the candidates, by address.
        count: how many, at most as many as there are.
        bound: ``(n,)`` the values before the first pick, or bounds of them; it is overwritten.
        refresh: indices to their values after the picks so far.
        taken: told of each pick.
        first: the first pick, if it is settled.
        enough: where no value is above it any more, fewer are picked.
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
        leader = int(running.argmax())  # the first of equals
        if bool(fresh[leader]):
            return leader
        # Also those that may lead next; more of them each time, so there are few times.
        some = running.topk(min(many, len(running)), sorted=False).indices
        some = torch.cat([some, some.new_tensor([leader])]).unique()
        some = some[~fresh[some] & open_[some]]
        bound[some] = refresh(some)
        running[some], fresh[some] = bound[some], True
        many *= 4
