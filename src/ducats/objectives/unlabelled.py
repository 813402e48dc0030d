"""Means over unlabelled target images or pixels."""

from collections.abc import Callable

from torch import Tensor

from ducats.domain import UNLABELLED
from ducats.objectives.batch import Batch, Forward
from ducats.objectives.means import means


def unlabelled(labels: Tensor) -> Tensor:
    """Return a mask of the positions that can still be labelled."""
    return labels == UNLABELLED


def over_unlabelled(
    model: Forward,
    batch: Batch,
    formula: Callable[[Tensor], tuple[Tensor, ...]],
    where: Callable[[Tensor], Tensor] = unlabelled,
) -> tuple[Tensor, ...] | None:
    """Compute the means of a formula's values; None if the batch has no unlabelled target data.

    Args:
        formula: from log alpha ``(N, C, ...)`` to one or several values per position, ``(N, ...)``.
        where: from labels to a mask of the pixels that count; segmentation only.
    """
    if batch.target is not None:
        return means(model(batch.target.images), lambda z, _: formula(z), batch.target.labels, where)
    if batch.unlabelled is not None:
        return tuple(values.mean() for values in formula(model(batch.unlabelled).z))
    return None
