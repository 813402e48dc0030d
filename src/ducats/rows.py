"""What the parts hand each other: a model's output, and images or pixels as rows of one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Output(NamedTuple):
    """What a model says about a batch of images."""

    z: Tensor  # (N, C, ...), log alpha, float32
    features: Tensor | None  # (N, D, ...), what the last layer sees; None if the model does not tell


@dataclass(frozen=True)
class Rows:
    """A table of images or pixels: where each row comes from, and the columns that were asked for."""

    image: Tensor  # (R,), index into the pool
    position: Tensor  # (R,), pixel inside the image; 0 when the row is the image
    columns: Mapping[str, Tensor]  # name -> (R, K)

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, index: Tensor) -> "Rows":
        """Take some rows, in the order of ``index``."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Rows(self.image[index], self.position[index], columns)

    def column(self, name: str) -> Tensor:
        """Return a column, or say that the strategy did not declare it."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}: declare it, Strategy(query, needs=({name!r},))")
        return self.columns[name]

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

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"a budget of {self.budget} labels")


def best(score: Tensor, count: int, rows: Rows) -> Tensor:
    """Indices of the ``count`` highest scores, best first; ties go to the lower address.

    Exact and in a fixed order whatever the order of the rows, unlike ``topk``, which leaves ties open.

    >>> rows = Rows(torch.tensor([5, 3, 9]), torch.zeros(3, dtype=torch.long), {})
    >>> best(torch.tensor([1.0, 1.0, 2.0]), 2, rows)
    tensor([2, 1])
    """
    count = min(count, len(score))
    if count == 0:
        return torch.empty(0, dtype=torch.long)
    if bool(score.isnan().any()):
        raise ValueError("a query scored NaN: its model or its formula is broken")
    # Only those that reach the last winner's score can win: sorting these is enough.
    threshold = score.topk(count).values[-1]
    contenders = (score >= threshold).nonzero().squeeze(1)
    order = np.lexsort(
        (
            rows.position[contenders].numpy(),
            rows.image[contenders].numpy(),
            -score[contenders].double().numpy(),
        )
    )
    return contenders[torch.from_numpy(order[:count].copy())]
