"""Means over the target that has no label: images, or pixels of images that may have some."""

from collections.abc import Callable

from torch import Tensor

from ducats.domain import UNLABELLED
from ducats.objectives.batch import Batch, Forward
from ducats.objectives.means import means


def unlabelled(labels: Tensor) -> Tensor:
    """Where a label may still be bought."""
    return labels == UNLABELLED


def over_unlabelled(
    model: Forward,
    batch: Batch,
    formula: Callable[[Tensor], tuple[Tensor, ...]],
    where: Callable[[Tensor], Tensor] = unlabelled,
) -> tuple[Tensor, ...] | None:
    """Means of each of a formula's values; None if the step has no unlabelled target.

    Args:
        model: images to what is said of them.
        batch: the step's data.
        formula: from log alpha ``(N, C, ...)`` to one or several values per position, ``(N, ...)``.
        where: of pixels, from labels to those that count.
    """
    if batch.target is not None:
        return means(model(batch.target.images), lambda z, _: formula(z), batch.target.labels, where)
    if batch.unlabelled is not None:
        return tuple(values.mean() for values in formula(model(batch.unlabelled).z))
    return None
