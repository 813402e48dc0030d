"""What the parts hand each other: a model's output, and images or pixels as rows of one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.windows import window_max


def as_it_is(z: Tensor) -> Tensor:
    """No evidence function is left to apply."""
    return z


class Output(NamedTuple):
    """What a model says about a batch of images: of each, or of each of its pixels.

    Of pixels, ``z`` are logits on the network's own coarse grid. ``grid.dense(output)`` interpolates them to
    ``size`` and applies ``evidence``: only then they are log alpha. Objectives never make that whole map, see
    ``objectives.means``.
    """

    z: Tensor  # (N, C), log alpha; or (N, C, h, w), see above; float32
    features: Tensor | None  # (N, D, ...), what the last layer sees; None if the model does not tell
    size: tuple[int, int] | None = None  # height and width of the images; None: z speaks of whole images
    evidence: Callable[[Tensor], Tensor] = as_it_is  # from interpolated logits to log alpha
    told: Mapping[str, Tensor] | None = None  # what witnesses say, (N, ...) each; of pixels (N, ..., h, w)


@dataclass(frozen=True)
class Deferred:
    """A column that is computed when it is read, and of those rows only that are left by then."""

    compute: Callable[[Tensor], Tensor]  # (R,) positions -> (R, ...) values
    position: Tensor  # (R,), of the rows that are left

    def __getitem__(self, index: Tensor) -> "Deferred":
        return Deferred(self.compute, self.position[index])


@dataclass(frozen=True)
class Rows:
    """A table of images or pixels: where each row comes from, and the columns that were asked for."""

    image: Tensor  # (R,), index into the pool
    position: Tensor  # (R,), pixel inside the image; 0 when the row is the image
    columns: Mapping[str, Tensor | Deferred]  # name -> (R,) or (R, K); read them with `column`
    shape: tuple[int, int] | None = None  # height and width of the map that positions count; None: images
    apart: int = 0  # rows this near to each other (in rows and in columns) overlap; `best` takes one of them

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Tensor) -> "Rows":
        """Take some rows, in the order of ``index``."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, image=self.image[index], position=self.position[index], columns=columns)

    def column(self, name: str) -> Tensor:
        """Return a column, or say that the strategy did not declare it."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}: declare it, Strategy(query, needs=({name!r},))")
        column = self.columns[name]
        return column.compute(column.position) if isinstance(column, Deferred) else column

    @property
    def z(self) -> Tensor:
        """Log alpha, ``(R, C)``."""
        return self.column("z")

    @property
    def features(self) -> Tensor:
        """What the last layer sees, ``(R, D)``."""
        return self.column("features")


@dataclass(frozen=True)
class Slate:
    """Rows that compete for one budget, and all that a query may know."""

    candidates: Rows  # not yet asked
    labelled: Rows  # already bought, with the columns that were asked for
    budget: int  # how many to pick
    generator: torch.Generator  # the only randomness a query may use
    source: Rows | None = (
        None  # source images, with the columns in `Strategy.source`; None where pixels compete
    )
    head: Tensor | None = None  # (C, D), the last layer's weights, if `Strategy.head`
    pool: int | None = None  # rows before the first was bought; None: the candidates and the labelled ones

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"a budget of {self.budget} labels")


def ask(query: Callable[[Slate], object], slate: Slate) -> Tensor:
    """Let a query choose, and hold it to the rules: distinct indices of ``slate.budget`` candidates."""
    picks, wrong = _as_indices(query(slate)).to(slate.candidates.image.device), None
    if picks.is_floating_point():
        wrong = "picked no whole numbers"
    elif len(picks) != slate.budget:
        wrong = f"picked {len(picks)} of {slate.budget}"
    elif len(picks) and (int(picks.min()) < 0 or int(picks.max()) >= len(slate.candidates)):
        wrong = f"picked an index outside 0 … {len(slate.candidates) - 1}"
    elif len(picks.unique()) != len(picks):
        wrong = "picked a row twice"
    if wrong:
        raise UserError(
            f"the query {name_of(query)} {wrong}: return the distinct indices of slate.budget candidates"
        )
    return picks


def name_of(function: object) -> str:
    """A function's own name, also if knobs are bound to it."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def best(score: Tensor, count: int, rows: Rows, apart: int = 0) -> Tensor:
    """Indices of the ``count`` highest scores, best first; ties go to the lower address.

    Exact and in a fixed order whatever the order of the rows, unlike ``topk``, which leaves ties open. Pixels
    can be kept apart: the best first, and none that is near to one already taken. When no other is left and
    the count is not reached, the same again among those that were passed over.

    Args:
        score: one number per row.
        count: how many to take; all, if there are fewer.
        rows: where the scores belong.
        apart: pixels of an image at most this many rows and columns from each other are near; ``rows.apart``
            counts if it is more. Images are never near.

    >>> rows = Rows(torch.tensor([5, 3, 9]), torch.zeros(3, dtype=torch.long), {})
    >>> best(torch.tensor([1.0, 1.0, 2.0]), 2, rows)
    tensor([2, 1])
    """
    count, apart = min(count, len(score)), max(apart, rows.apart)
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=score.device)
    if bool(score.isnan().any()):
        raise ValueError("a query scored NaN: its model or its formula is broken")
    if apart == 0 or rows.shape is None:
        return _top(score, count, rows)
    # A pick passes over at most a window of others: so many of the best are enough to find them all.
    order = _top(score, min(len(score), count * (2 * apart + 1) ** 2), rows)
    return order[_greedy(rows[order], rows.shape, count, apart)]


def _top(score: Tensor, count: int, rows: Rows) -> Tensor:
    # Only those that reach the last winner's score can win: sorting these is enough.
    threshold = score.topk(count, sorted=False).values.min()
    order = (score >= threshold).nonzero().squeeze(1)
    order = order[rows.position[order].argsort(stable=True)]
    order = order[rows.image[order].argsort(stable=True)]
    # Some sorts tell -0 from 0; the sum does not.
    return order[(score[order] + 0).argsort(stable=True, descending=True)][:count]


def _greedy(rows: Rows, shape: tuple[int, int], count: int, apart: int) -> Tensor:
    """Indices of the rows that are taken one by one, in their order, none near to another.

    All at once instead of one by one: a row that is first in its whole neighbourhood is taken whatever
    happens elsewhere, and its neighbours are passed over; then again among the rest.
    """
    length, device = len(rows), rows.image.device
    image = rows.image.unique(return_inverse=True)[1]
    where = (image * shape[0] + rows.position // shape[1]) * shape[1] + rows.position % shape[1]
    maps = (int(image.max()) + 1, *shape)
    rank = torch.arange(length, 0, -1, dtype=torch.int32, device=device)  # the first has the highest
    taken = torch.zeros(length, dtype=torch.bool, device=device)
    layers: list[Tensor] = []
    while (left := count - sum(map(len, layers))) > 0:
        layer = _layer(rank.masked_fill(taken, 0), where, maps, left, apart)
        taken[layer] = True
        layers.append(layer)
    return torch.cat(layers)


def _layer(rank: Tensor, where: Tensor, maps: tuple[int, int, int], count: int, apart: int) -> Tensor:
    """The first rows, at most ``count``, of which none is near to another; a rank of 0 does not compete."""
    length, size = len(rank), maps[0] * maps[1] * maps[2]
    open_ = rank.new_zeros(size).scatter_(0, where, rank).view(maps)
    won = rank.new_zeros(0)
    while True:
        first = (open_ == window_max(open_, apart)) & (open_ > 0)
        won = torch.cat([won, open_[first]]).sort(descending=True).values[:count]
        open_ = open_.masked_fill(window_max(first.to(torch.uint8), apart) > 0, 0)
        if len(won) == count:  # what comes after the last winner is of no interest any more
            open_ = open_.masked_fill(open_ < won[-1], 0)
        if not bool(open_.any()):
            return length - won.long()


def _as_indices(picks: object) -> Tensor:
    """A tensor from whatever a query returned: a tensor, an array (reversed ones too), a list."""
    flat = picks if isinstance(picks, Tensor) else torch.from_numpy(np.array(picks).copy())
    flat = flat.flatten()
    return flat if flat.is_floating_point() and len(flat) else flat.long()
