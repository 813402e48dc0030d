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
    labels: Tensor  # int64 (N,), or maps (N, height, width) of small integers; below zero does not count


@dataclass(frozen=True)
class Batch:
    """One step's data, by stream."""

    source: Labelled
    labelled: Labelled | None  # bought target images; None before the first answer
    unlabelled: Tensor | None  # target images without label; None when all were bought
    target: Labelled | None = None  # where pixels are bought: images whose maps hold labels, UNLABELLED, VOID
    strong: Tensor | None = None  # the images of `unlabelled` in the strong view, if the objective reads them
    certain: Labelled | None = None  # target images with labels that the objective's companion gave them
    bought: bool = True  # whether pixels of `target` may have labels: none has before the first answer


def known(labels: Tensor) -> Tensor:
    """Where there is a label."""
    return labels >= 0
