"""Tables of samples (images or pixels), and the contract of queries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ducats.acquisition.neighbourhoods import window_max
from ducats.utils.errors import UserError
from ducats.utils.randomness import uniform_per_location


@dataclass(frozen=True)
class LazyColumn:
    """A column that is computed when it is read, for the remaining rows only."""

    compute: Callable[[Tensor], Tensor]  # (R,) positions -> (R, ...) values
    position: Tensor  # (R,), of the remaining rows

    def __getitem__(self, index: Tensor) -> "LazyColumn":
        return LazyColumn(self.compute, self.position[index])

    def to(self, device: torch.device | str) -> "LazyColumn":
        """Return the column with its values on another device."""
        compute, home = self.compute, self.position.device
        return LazyColumn(lambda position: compute(position.to(home)).to(device), self.position.to(device))


@dataclass(frozen=True)
class SampleTable:
    """A table of images or pixels: the location of each row, and the requested columns."""

    image: Tensor  # (R,), index into the pool
    position: Tensor  # (R,), pixel within the image; 0 if the row is an image
    columns: Mapping[str, Tensor | LazyColumn]  # name -> (R,) or (R, K); read with `column`
    shape: tuple[int, int] | None = None  # height and width of the grid of positions; None: images
    min_distance: int = 0  # pixels up to this distance (rows and columns) overlap; `top_k` takes one of them

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Tensor) -> "SampleTable":
        """Return some rows, in the order of ``index``."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, image=self.image[index], position=self.position[index], columns=columns)

    def column(self, name: str) -> Tensor:
        """Return a column; raise ``KeyError`` if the query did not declare it."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; declare it: QuerySpec(query, needs=({name!r},))")
        column = self.columns[name]
        return column.compute(column.position) if isinstance(column, LazyColumn) else column

    def to(self, device: torch.device | str) -> "SampleTable":
        """Return the table with all columns on a device; a lazy column is computed there from now on."""
        columns = {name: column.to(device) for name, column in self.columns.items()}
        return replace(self, image=self.image.to(device), position=self.position.to(device), columns=columns)

    @property
    def nbytes(self) -> int:
        """Memory of the columns, without lazy ones."""
        return sum(column.nbytes for column in self.columns.values() if isinstance(column, Tensor))

    @property
    def z(self) -> Tensor:
        """Log alpha, ``(R, C)``."""
        return self.column("z")

    @property
    def features(self) -> Tensor:
        """Inputs of the last layer, ``(R, D)``."""
        return self.column("features")


@dataclass(frozen=True)
class QueryContext:
    """The input of a query: the candidates, the budget, and everything else that it may use."""

    candidates: SampleTable  # not yet labelled
    labelled: SampleTable  # already labelled, with the same columns
    budget: int  # number of candidates to pick
    generator: torch.Generator  # the query's only source of randomness
    source: SampleTable | None = None  # columns in `QuerySpec.source_needs`; None if pixels compete
    head: Tensor | None = None  # (C, D), the last layer's weights, if `QuerySpec.needs_head`
    pool_size: int | None = None  # rows before the first round; None: candidates plus labelled
    # Pixels of earlier rounds, also those without a class, with ``features`` if the query needs them.
    acquired: SampleTable | None = None

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"budget must not be negative, got {self.budget}")

    def to(self, device: torch.device | str) -> "QueryContext":
        """Return the context with all tables on a device."""

        def move(table: SampleTable | None) -> SampleTable | None:
            return None if table is None else table.to(device)

        return replace(
            self,
            candidates=self.candidates.to(device),
            labelled=self.labelled.to(device),
            source=move(self.source),
            head=None if self.head is None else self.head.to(device),
            acquired=move(self.acquired),
        )

    @property
    def nbytes(self) -> int:
        """Memory of all tables."""
        tables = (self.candidates, self.labelled, self.source, self.acquired)
        return sum(table.nbytes for table in tables if table is not None)


def run_query(query: Callable[[QueryContext], object], context: QueryContext) -> Tensor:
    """Run a query and check its result: distinct indices of ``context.budget`` candidates."""
    picks, problem = _as_indices(query(context)).to(context.candidates.image.device), None
    if picks.is_floating_point():
        problem = "returned non-integer indices"
    elif len(picks) != context.budget:
        problem = f"returned {len(picks)} indices instead of {context.budget}"
    elif len(picks) and (int(picks.min()) < 0 or int(picks.max()) >= len(context.candidates)):
        problem = f"returned an index outside 0 … {len(context.candidates) - 1}"
    elif len(picks.unique()) != len(picks):
        problem = "returned an index more than once"
    if problem:
        raise UserError(
            f"the query {function_name(query)} {problem}; return distinct indices of context.budget "
            "candidates"
        )
    return picks


def function_name(function: object) -> str:
    """Return a function's own name, also if parameters are bound to it."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def top_k(
    score: Tensor,
    count: int,
    samples: SampleTable,
    min_distance: int = 0,
    apart_from: SampleTable | None = None,
) -> Tensor:
    """Return the indices of the ``count`` highest scores, best first; ties go to the lower location.

    Unlike ``topk``, the result is deterministic and does not depend on the order of the rows. A minimum
    distance between pixels is enforced greedily: best first, skipping pixels near a pick. If no pixel is left
    before the count is reached, the selection continues in the same way among the skipped ones.

    Args:
        count: number of rows to take; all, if there are fewer.
        min_distance: pixels of one image at most this many rows and columns apart are near; the larger of
            this and ``samples.min_distance`` applies. Images are never near.
        apart_from: pixels that are not candidates, such as earlier picks; those near them (by
            ``min_distance`` itself) are skipped, too.

    >>> samples = SampleTable(torch.tensor([5, 3, 9]), torch.zeros(3, dtype=torch.long), {})
    >>> top_k(torch.tensor([1.0, 1.0, 2.0]), 2, samples)
    tensor([2, 1])
    """
    own_distance = min_distance
    count, min_distance = min(count, len(score)), max(min_distance, samples.min_distance)
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=score.device)
    if bool(score.isnan().any()):
        raise ValueError("the query's scores contain NaN; check the model and the query's formula")
    if min_distance == 0 or samples.shape is None:
        return _top_k(score, count, samples)
    n_windows = count + (0 if apart_from is None else len(apart_from))
    # A pick skips at most one window of others, so this many of the best are enough.
    order = _top_k(score, min(len(score), n_windows * (2 * min_distance + 1) ** 2), samples)
    rows = samples[order]
    skipped = None if apart_from is None else _is_near(rows, apart_from, samples.shape, own_distance)
    return order[_greedy_spaced(rows, samples.shape, count, min_distance, skipped)]


def random_k(generator: torch.Generator, count: int, samples: SampleTable) -> Tensor:
    """Return the indices of random rows, as `top_k` of random scores that depend on the location only."""
    return top_k(uniform_per_location(generator, samples.image, samples.position), count, samples)


def _top_k(score: Tensor, count: int, samples: SampleTable) -> Tensor:
    # Only rows that reach the lowest selected score need sorting.
    threshold = score.topk(count, sorted=False).values.min()
    order = (score >= threshold).nonzero().squeeze(1)
    order = order[samples.position[order].argsort(stable=True)]
    order = order[samples.image[order].argsort(stable=True)]
    # Adding 0 turns -0 into 0, which some sorts would order differently.
    return order[(score[order] + 0).argsort(stable=True, descending=True)][:count]


def _is_near(samples: SampleTable, others: SampleTable, shape: tuple[int, int], min_distance: int) -> Tensor:
    """Return a mask of the rows that are near one of the other pixels."""
    image = torch.cat([samples.image, others.image]).unique(return_inverse=True)[1]
    flat_index = image * (shape[0] * shape[1]) + torch.cat([samples.position, others.position])
    n_images = int(image.max()) + 1
    others_map = torch.zeros(n_images * shape[0] * shape[1], dtype=torch.uint8, device=image.device)
    others_map[flat_index[len(samples) :]] = 1
    return (
        window_max(others_map.view(n_images, *shape), min_distance).flatten()[flat_index[: len(samples)]] > 0
    )


def _greedy_spaced(
    samples: SampleTable, shape: tuple[int, int], count: int, min_distance: int, skipped: Tensor | None
) -> Tensor:
    """Return the indices of greedily selected rows, in order, none near another.

    ``skipped`` rows are selected only if the others are not enough. Parallel instead of one by one: a row
    that is first in its neighbourhood is selected in any case, and its neighbours are skipped; repeat for the
    rest.
    """
    length, device = len(samples), samples.image.device
    image = samples.image.unique(return_inverse=True)[1]
    flat_index = (image * shape[0] + samples.position // shape[1]) * shape[1] + samples.position % shape[1]
    map_shape = (int(image.max()) + 1, *shape)
    rank = torch.arange(length, 0, -1, dtype=torch.int32, device=device)  # the first row has the highest
    taken = torch.zeros(length, dtype=torch.bool, device=device)
    layers: list[Tensor] = []
    if skipped is not None:
        open_rank = rank.masked_fill(skipped, 0)
        layers.append(_spaced_layer(open_rank, flat_index, map_shape, count, min_distance))
        taken[layers[0]] = True
    while (remaining := count - sum(map(len, layers))) > 0:
        layer = _spaced_layer(rank.masked_fill(taken, 0), flat_index, map_shape, remaining, min_distance)
        taken[layer] = True
        layers.append(layer)
    return torch.cat(layers)


def _spaced_layer(
    rank: Tensor, flat_index: Tensor, map_shape: tuple[int, int, int], count: int, min_distance: int
) -> Tensor:
    """Return the first rows, at most ``count``, none near another; rows of rank 0 do not compete."""
    length, size = len(rank), map_shape[0] * map_shape[1] * map_shape[2]
    open_ranks = rank.new_zeros(size).scatter_(0, flat_index, rank).view(map_shape)
    winning_ranks = rank.new_zeros(0)
    while True:
        first = (open_ranks == window_max(open_ranks, min_distance)) & (open_ranks > 0)
        winning_ranks = torch.cat([winning_ranks, open_ranks[first]]).sort(descending=True).values[:count]
        open_ranks = open_ranks.masked_fill(window_max(first.to(torch.uint8), min_distance) > 0, 0)
        if len(winning_ranks) == count:  # lower ranks than the last of these can no longer win
            open_ranks = open_ranks.masked_fill(open_ranks < winning_ranks[-1], 0)
        if not bool(open_ranks.any()):
            return length - winning_ranks.long()


def _as_indices(picks: object) -> Tensor:
    """Convert a query's result (tensor, array with any strides, or list) to a tensor."""
    flat = picks if isinstance(picks, Tensor) else torch.from_numpy(np.array(picks).copy())
    flat = flat.flatten()
    return flat if flat.is_floating_point() and len(flat) else flat.long()
