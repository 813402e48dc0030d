"""Certainty sampling (EUQ; Duan et al., WACV 2024): images that the model is sure of get its own label."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ducats.domain import UNLABELLED
from ducats.errors import UserError
from ducats.objectives.companion import Beside, Companion, Look, Moment


class Certainty(Companion):
    """Before each question, labels some more images of the pool itself: the rate times the question's number.

    With a rate of zero it does nothing, and holds nothing.

    Args:
        beside: what it is made for.
        doubt: from log alpha to what a certain image has little of.
        rate: share of the pool that is labelled before the first question; twice that before the second.
        most: share of the pool that is labelled at most, in all.
        knob: how a config calls the rate, for the message.
    """

    own: Tensor
    weightless = True

    def __init__(
        self,
        beside: Beside,
        doubt: Callable[[Tensor], Tensor],
        *,
        rate: float,
        most: float = 0.5,
        knob: str = "rate",
    ) -> None:
        super().__init__()
        if not 0 <= rate <= 1 or not 0 <= most <= 1:
            raise ValueError(f"shares of the pool lie between 0 and 1: {knob}={rate}, most={most}")
        if rate and beside.pixels:
            raise UserError(
                f"certainty sampling labels images, not pixels: set objective.knobs.{knob}=0 for segmentation"
            )
        self.doubt, self.rate, self.most = doubt, rate, most
        if rate:
            self.register_buffer("own", torch.full((beside.pool,), UNLABELLED))

    def due(self, moment: Moment) -> bool:
        """Before each question."""
        return self.rate > 0 and moment.question > 0

    def refresh(self, moment: Moment, look: Look) -> None:
        """Label the most certain images that have no label yet, as many of each class as it allows."""
        assert look.targets is not None
        said = [(index, self.doubt(o.z).cpu(), o.z.argmax(1).cpu()) for index, o in look.pool()]
        index, doubt, guess = (torch.cat(column) for column in zip(*said, strict=True))
        before = self.own.cpu()
        open_ = (look.targets[index] == UNLABELLED) & (before[index] == UNLABELLED)
        wanted = min(
            _ceil(self.rate * moment.question * len(before)),
            _ceil(self.most * len(before)) - int((before >= 0).sum()),
        )
        chosen = most_certain(doubt[open_], guess[open_], max(wanted, 0))
        before[index[open_][chosen]] = guess[open_][chosen]
        self.own.copy_(before)

    def own_labels(self) -> Tensor | None:
        """The labels; None if there are to be none."""
        return self.own if self.rate else None


def most_certain(doubt: Tensor, guess: Tensor, count: int) -> Tensor:
    """Indices of the lowest doubts in passes, each of which takes at most one of each class.

    Args:
        doubt: ``(R,)``.
        guess: predicted classes, ``(R,)``.
        count: how many to take; all, if there are fewer.

    >>> most_certain(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 1, 1]), 3)
    tensor([0, 2, 1])
    """
    order = doubt.argsort(stable=True)
    by_class = order[guess[order].argsort(stable=True)]  # the classes one after another, each by doubt
    _, counts = guess[by_class].unique_consecutive(return_counts=True)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    turn = torch.empty_like(order)
    turn[by_class] = torch.arange(len(order)) - first  # the pass in which its class comes to it
    return order[turn[order].argsort(stable=True)][:count]


def _ceil(number: float) -> int:
    """Upwards, except from what is whole but for rounding: 0.07 * 100 is 7."""
    return math.ceil(round(number, 9))
