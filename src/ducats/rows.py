"""Model outputs, tables of samples (images or pixels), and the contract of queries."""

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
    """Return log alpha unchanged: no evidence function is left to apply."""
    return z


class Output(NamedTuple):
    """Model output for a batch of images, per image or per pixel.

    In segmentation, ``z`` are logits on the network's coarse grid. ``upsampling.upsample(output)``
    interpolates them to ``size`` and applies ``evidence``, which gives log alpha. Objectives never build that
    full map, see ``objectives.masked_means``.
    """

    z: Tensor  # (N, C), log alpha; or (N, C, h, w), see above; float32
    features: Tensor | None  # (N, D, ...), inputs of the last layer; None if the model does not return them
    size: tuple[int, int] | None = None  # height and width of the images; None: z is per image
    evidence: Callable[[Tensor], Tensor] = as_it_is  # from interpolated logits to log alpha
    told: Mapping[str, Tensor] | None = None  # probe columns, (N, ...) each; per pixel (N, ..., h, w)


@dataclass(frozen=True)
class Deferred:
    """A column that is computed when it is read, for the remaining rows only."""

    compute: Callable[[Tensor], Tensor]  # (R,) positions -> (R, ...) values
    position: Tensor  # (R,), of the remaining rows

    def __getitem__(self, index: Tensor) -> "Deferred":
        return Deferred(self.compute, self.position[index])


@dataclass(frozen=True)
class Rows:
    """A table of images or pixels: the location of each row, and the requested columns."""

    image: Tensor  # (R,), index into the pool
    position: Tensor  # (R,), pixel within the image; 0 if the row is an image
    columns: Mapping[str, Tensor | Deferred]  # name -> (R,) or (R, K); read with `column`
    shape: tuple[int, int] | None = None  # height and width of the grid of positions; None: images
    apart: int = 0  # pixels up to this distance (rows and columns) overlap; `top_k` takes one of them

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Tensor) -> "Rows":
        """Return some rows, in the order of ``index``."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, image=self.image[index], position=self.position[index], columns=columns)

    def column(self, name: str) -> Tensor:
        """Return a column; raise ``KeyError`` if the query did not declare it."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; declare it: QuerySpec(query, needs=({name!r},))")
        column = self.columns[name]
        return column.compute(column.position) if isinstance(column, Deferred) else column

    @property
    def z(self) -> Tensor:
        """Log alpha, ``(R, C)``."""
        return self.column("z")

    @property
    def features(self) -> Tensor:
        """Inputs of the last layer, ``(R, D)``."""
        return self.column("features")


@dataclass(frozen=True)
class Slate:
    """The input of a query: the candidates, the budget, and everything else that it may use."""

    candidates: Rows  # not yet labelled
    labelled: Rows  # already labelled, with the same columns
    budget: int  # number of candidates to pick
    generator: torch.Generator  # the query's only source of randomness
    source: Rows | None = (
        None  # source images, with the columns in `QuerySpec.source`; None if pixels compete
    )
    head: Tensor | None = None  # (C, D), the last layer's weights, if `QuerySpec.head`
    pool: int | None = None  # rows before the first round; None: candidates plus labelled

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"budget must not be negative, got {self.budget}")


def ask(query: Callable[[Slate], object], slate: Slate) -> Tensor:
    """Run a query and check its result: distinct indices of ``context.budget`` candidates."""
    picks, wrong = _as_indices(query(slate)).to(slate.candidates.image.device), None
    if picks.is_floating_point():
        wrong = "returned non-integer indices"
    elif len(picks) != slate.budget:
        wrong = f"returned {len(picks)} indices instead of {slate.budget}"
    elif len(picks) and (int(picks.min()) < 0 or int(picks.max()) >= len(slate.candidates)):
        wrong = f"returned an index outside 0 … {len(slate.candidates) - 1}"
    elif len(picks.unique()) != len(picks):
        wrong = "returned an index more than once"
    if wrong:
        raise UserError(
            f"the query {name_of(query)} {wrong}; return distinct indices of context.budget candidates"
        )
    return picks


def name_of(function: object) -> str:
    """Return a function's own name, also if parameters are bound to it."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def best(score: Tensor, count: int, rows: Rows, apart: int = 0) -> Tensor:
    """Return the indices of the ``count`` highest scores, best first; ties go to the lower location.

    Unlike ``topk``, the result is deterministic and does not depend on the order of the rows. A minimum
    distance between pixels is enforced greedily: best first, skipping pixels near a pick. If no pixel is left
    before the count is reached, the selection continues in the same way among the skipped ones.

    Args:
        score: one value per row.
        count: number of rows to take; all, if there are fewer.
        rows: the rows that the scores belong to.
        apart: pixels of one image at most this many rows and columns apart are near; the larger of this and
            ``rows.apart`` applies. Images are never near.

    >>> rows = Rows(torch.tensor([5, 3, 9]), torch.zeros(3, dtype=torch.long), {})
    >>> best(torch.tensor([1.0, 1.0, 2.0]), 2, rows)
    tensor([2, 1])
    """
    count, apart = min(count, len(score)), max(apart, rows.apart)
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=score.device)
    if bool(score.isnan().any()):
        raise ValueError("the query's scores contain NaN; check the model and the query's formula")
    if apart == 0 or rows.shape is None:
        return _top(score, count, rows)
    # A pick skips at most one window of others, so this many of the best are enough.
    order = _top(score, min(len(score), count * (2 * apart + 1) ** 2), rows)
    return order[_greedy(rows[order], rows.shape, count, apart)]


def _top(score: Tensor, count: int, rows: Rows) -> Tensor:
    # Only rows that reach the lowest selected score need sorting.
    threshold = score.topk(count, sorted=False).values.min()
    order = (score >= threshold).nonzero().squeeze(1)
    order = order[rows.position[order].argsort(stable=True)]
    order = order[rows.image[order].argsort(stable=True)]
    # Adding 0 turns -0 into 0, which some sorts would order differently.
    return order[(score[order] + 0).argsort(stable=True, descending=True)][:count]


def _greedy(rows: Rows, shape: tuple[int, int], count: int, apart: int) -> Tensor:
    """Return the indices of greedily selected rows, in order, none near another.

    Parallel instead of one by one: a row that is first in its neighbourhood is selected in any case, and its
    neighbours are skipped; repeat for the rest.
    """
    length, device = len(rows), rows.image.device
    image = rows.image.unique(return_inverse=True)[1]
    where = (image * shape[0] + rows.position // shape[1]) * shape[1] + rows.position % shape[1]
    maps = (int(image.max()) + 1, *shape)
    rank = torch.arange(length, 0, -1, dtype=torch.int32, device=device)  # the first row has the highest
    taken = torch.zeros(length, dtype=torch.bool, device=device)
    layers: list[Tensor] = []
    while (left := count - sum(map(len, layers))) > 0:
        layer = _layer(rank.masked_fill(taken, 0), where, maps, left, apart)
        taken[layer] = True
        layers.append(layer)
    return torch.cat(layers)


def _layer(rank: Tensor, where: Tensor, maps: tuple[int, int, int], count: int, apart: int) -> Tensor:
    """Return the first rows, at most ``count``, none near another; rows of rank 0 do not compete."""
    length, size = len(rank), maps[0] * maps[1] * maps[2]
    open_ = rank.new_zeros(size).scatter_(0, where, rank).view(maps)
    won = rank.new_zeros(0)
    while True:
        first = (open_ == window_max(open_, apart)) & (open_ > 0)
        won = torch.cat([won, open_[first]]).sort(descending=True).values[:count]
        open_ = open_.masked_fill(window_max(first.to(torch.uint8), apart) > 0, 0)
        if len(won) == count:  # lower ranks than the last winner's can no longer win
            open_ = open_.masked_fill(open_ < won[-1], 0)
        if not bool(open_.any()):
            return length - won.long()


def _as_indices(picks: object) -> Tensor:
    """Convert a query's result (tensor, array with any strides, or list) to a tensor."""
    flat = picks if isinstance(picks, Tensor) else torch.from_numpy(np.array(picks).copy())
    flat = flat.flatten()
    return flat if flat.is_floating_point() and len(flat) else flat.long()
