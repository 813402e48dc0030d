"""Means over unlabelled target images or pixels."""

from collections.abc import Callable

from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.objectives.batch import Batch, ForwardFn
from ducats.objectives.reduction import masked_means


def is_unlabelled(labels: Tensor) -> Tensor:
    """Return a mask of the positions that can still be labelled."""
    return labels == UNLABELLED


def unlabelled_means(
    model: ForwardFn,
    batch: Batch,
    formula: Callable[[Tensor], tuple[Tensor, ...]],
    mask_fn: Callable[[Tensor], Tensor] = is_unlabelled,
) -> tuple[Tensor, ...] | None:
    """Compute the means of a formula's values; None if the batch has no unlabelled target data.

    Args:
        formula: from log alpha ``(N, C, ...)`` to one or several values per position, ``(N, ...)``.
        mask_fn: from labels to a mask of the pixels that count; segmentation only.
    """
    if batch.target is not None:
        return masked_means(model(batch.target.images), lambda z, _: formula(z), batch.target.labels, mask_fn)
    if batch.unlabelled is not None:
        return tuple(values.mean() for values in formula(model(batch.unlabelled).z))
    return None
