"""What an objective is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ducats.rows import Output

Forward = Callable[[Tensor], Output]
Losses = dict[str, Tensor]  # scalars, weighted; the names appear in progress and records


class Labelled(NamedTuple):
    """Images and their labels."""

    images: Tensor  # float32 (N, channels, height, width) in [0, 1]
    labels: Tensor  # int64 (N, ...); below zero does not count


@dataclass(frozen=True)
class Batch:
    """One step's data, by stream."""

    source: Labelled
    labelled: Labelled | None  # bought target images; None before the first answer
    unlabelled: Tensor | None  # target images without label; None when all were bought


def mean_where_known(values: Tensor, labels: Tensor) -> Tensor:
    """Mean over positions that have a label; zero if none has: ``(N, ...), (N, ...) -> ()``."""
    known = labels >= 0
    return (values * known).sum() / known.sum().clamp(min=1)
