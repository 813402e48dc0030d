"""Certainty sampling (EUQ; Duan et al., WACV 2024): pseudo-labels for the most certain images."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.objectives.auxiliary import AuxiliaryContext, AuxiliaryModule, FullPass, RefreshContext
from ducats.utils.errors import UserError


class CertaintySampling(AuxiliaryModule):
    """Pseudo-label more images of the pool before each round.

    Before round r, ``rate * r`` of the pool is added. With a rate of zero it does nothing and has no state.

    Args:
        uncertainty_fn: function from log alpha to an uncertainty, low for certain images.
        rate: fraction of the pool that is pseudo-labelled before the first round.
        max_fraction: maximum fraction of the pool that is pseudo-labelled in total.
    """

    labels: Tensor
    shardable = True

    def __init__(
        self,
        context: AuxiliaryContext,
        uncertainty_fn: Callable[[Tensor], Tensor],
        *,
        rate: float,
        max_fraction: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 <= rate <= 1 or not 0 <= max_fraction <= 1:
            raise ValueError(
                f"fractions of the pool must be between 0 and 1, not certainty_rate={rate}, "
                f"max_fraction={max_fraction}"
            )
        if rate and context.per_pixel:
            raise UserError(
                "certainty sampling labels whole images, not pixels; set objective.params.certainty_rate=0"
            )
        self.uncertainty_fn, self.rate, self.max_fraction = uncertainty_fn, rate, max_fraction
        if rate:
            self.register_buffer("labels", torch.full((context.pool_size,), UNLABELLED))

    def is_due(self, context: RefreshContext) -> bool:
        """Return True before each round."""
        return self.rate > 0 and context.next_round > 0

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:
        """Pseudo-label the most certain unlabelled images, balanced over the classes."""
        assert full_pass.pool_labels is not None
        outputs = [
            (index, self.uncertainty_fn(o.z).cpu(), o.z.argmax(1).cpu()) for index, o in full_pass.pool()
        ]
        index, uncertainty, predicted = (torch.cat(column) for column in zip(*outputs, strict=True))
        labels = self.labels.cpu()
        open_ = (full_pass.pool_labels[index] == UNLABELLED) & (labels[index] == UNLABELLED)
        n_new = min(
            _ceil(self.rate * context.next_round * len(labels)),
            _ceil(self.max_fraction * len(labels)) - int((labels >= 0).sum()),
        )
        chosen = most_certain_per_class(uncertainty[open_], predicted[open_], max(n_new, 0))
        labels[index[open_][chosen]] = predicted[open_][chosen]
        self.labels.copy_(labels)

    def pseudo_labels(self) -> Tensor | None:
        """Return the pseudo-labels; None if the rate is zero."""
        return self.labels if self.rate else None


def most_certain_per_class(uncertainty: Tensor, predicted: Tensor, count: int) -> Tensor:
    """Return the indices of the lowest uncertainties, in passes that take at most one of each class.

    Args:
        uncertainty: uncertainties, ``(R,)``.
        predicted: predicted classes, ``(R,)``.
        count: number of indices; all if there are fewer.

    >>> most_certain_per_class(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 0, 1, 1]), 3)
    tensor([0, 2, 1])
    """
    order = uncertainty.argsort(stable=True)
    by_class = order[predicted[order].argsort(stable=True)]  # sorted by class, then by uncertainty
    _, counts = predicted[by_class].unique_consecutive(return_counts=True)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    pass_number = torch.empty_like(order)
    pass_number[by_class] = torch.arange(len(order)) - first  # the pass in which each is taken
    return order[pass_number[order].argsort(stable=True)][:count]


def _ceil(number: float) -> int:
    """Round up, ignoring floating-point error: 0.07 * 100 is 7."""
    return math.ceil(round(number, 9))
