"""Losses on pseudo-labels: outputs of model and teacher stacked as channels for `means`."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ducats import grid
from ducats.domain import UNLABELLED
from ducats.objectives.batch import Batch, Labelled
from ducats.objectives.means import Formula, means
from ducats.rows import Output

FEW = 1e-12  # avoids division by zero if no position is kept


def stacked(student: Output, alike: Sequence[Tensor] = (), plain: Sequence[Tensor] = ()) -> Output:
    """Stack the student's logits and other maps along the channels, as one output without features.

    Args:
        student: output of the model.
        alike: further logits ``(N, C, h, w)``, to which the student's evidence function also applies.
        plain: maps ``(N, K, h, w)`` that are only interpolated.
    """
    grids = student.z.shape[2:]
    others = [_on(grids, x.to(student.z.dtype)) for x in (*alike, *plain)]
    evident = student.z.shape[1] * (1 + len(alike))
    z = torch.cat([student.z, *others], 1)
    return Output(z, None, student.size, partial(_first, student.evidence, evident))


def _first(evidence: Callable[[Tensor], Tensor], channels: int, logits: Tensor) -> Tensor:
    if channels == logits.shape[1]:
        return evidence(logits)
    return torch.cat([evidence(logits[:, :channels]), logits[:, channels:]], 1)


def _on(grids: torch.Size, x: Tensor) -> Tensor:
    """Interpolate a map to a given coarse grid."""
    return x if x.shape[2:] == grids else grid.interpolate(x, (grids[0], grids[1]))


def over_kept(
    output: Output, formula: Formula, labels: Tensor, where: Callable[[Tensor], Tensor]
) -> tuple[Tensor, ...]:
    """Compute means like `means`, but only over positions that the formula keeps; zero if it keeps none.

    Args:
        output: from `stacked`.
        formula: returns values and, last, a bool mask of the positions to keep.
    """

    def weighed(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        *values, kept = formula(z, label)
        return *(torch.where(kept, value, 0.0) for value in values), kept.to(z.dtype)

    *found, share = means(output, weighed, labels, where)
    return tuple(value / share.detach().clamp(min=FEW) for value in found)


def unlabelled_target(batch: Batch) -> Labelled | None:
    """Return target images with unlabelled positions, and their labels; None if there are none."""
    if batch.target is not None or batch.unlabelled is None:
        return batch.target
    images = batch.unlabelled
    return Labelled(images, torch.full((len(images),), UNLABELLED, device=images.device))


def evident(output: Output) -> Tensor:
    """Return log alpha on the network's own grid, in float32 or float64."""
    z = output.z if output.size is None else output.evidence(output.z)
    return z if z.dtype == torch.float64 else z.float()


def at(log_probability: Tensor, label: Tensor) -> Tensor:
    """Return the log probability of the label at each position: ``(N, C, ...), (N, ...) -> (N, ...)``."""
    return log_probability.gather(1, label[:, None]).squeeze(1)


def by_class(values: Tensor, like: Tensor) -> Tensor:
    """Reshape values per class, ``(C,)``, for broadcasting with ``(N, C, ...)``."""
    return values.view(1, -1, *[1] * (like.ndim - 2))
