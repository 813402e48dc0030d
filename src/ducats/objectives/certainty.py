"""Certainty sampling (EUQ; Duan et al., WACV 2024): pseudo-labels for the most certain images."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ducats.domain import UNLABELLED
from ducats.errors import UserError
from ducats.objectives.companion import Beside, Companion, Look, Moment


class Certainty(Companion):
    """Pseudo-label more images of the pool before each round.

    Before round r, ``rate * r`` of the pool is added. With a rate of zero it does nothing and has no state.

    Args:
        doubt: function from log alpha to an uncertainty, low for certain images.
        rate: fraction of the pool that is pseudo-labelled before the first round.
        most: maximum fraction of the pool that is pseudo-labelled in total.
        knob: name of the rate in the config, for messages.
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
            raise ValueError(f"fractions of the pool must be between 0 and 1, not {knob}={rate}, most={most}")
        if rate and beside.pixels:
            raise UserError(
                f"certainty sampling labels whole images, not pixels; set objective.params.{knob}=0"
            )
        self.doubt, self.rate, self.most = doubt, rate, most
        if rate:
            self.register_buffer("own", torch.full((beside.pool,), UNLABELLED))

    def due(self, moment: Moment) -> bool:
        """Return True before each round."""
        return self.rate > 0 and moment.question > 0

    def refresh(self, moment: Moment, look: Look) -> None:
        """Pseudo-label the most certain unlabelled images, balanced over the classes."""
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
        """Return the pseudo-labels; None if the rate is zero."""
        return self.own if self.rate else None


def most_certain(doubt: Tensor, guess: Tensor, count: int) -> Tensor:
    """Return the indices of the lowest uncertainties, in passes that take at most one of each class.

    Args:
        doubt: uncertainties, ``(R,)``.
        guess: predicted classes, ``(R,)``.
        count: number of indices; all if there are fewer.

    >>> most_certain(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 1, 1]), 3)
    tensor([0, 2, 1])
    """
    order = doubt.argsort(stable=True)
    by_class = order[guess[order].argsort(stable=True)]  # sorted by class, then by uncertainty
    _, counts = guess[by_class].unique_consecutive(return_counts=True)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    turn = torch.empty_like(order)
    turn[by_class] = torch.arange(len(order)) - first  # the pass in which each is taken
    return order[turn[order].argsort(stable=True)][:count]


def _ceil(number: float) -> int:
    """Round up, ignoring floating-point error: 0.07 * 100 is 7."""
    return math.ceil(round(number, 9))
