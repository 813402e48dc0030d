"""Losses on pseudo-labels: outputs of model and teacher stacked as channels for `masked_means`."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.models import upsampling
from ducats.models.output import Output
from ducats.objectives.batch import Batch, LabelledImages
from ducats.objectives.reduction import Formula, masked_means

MIN_KEPT_FRACTION = 1e-12  # avoids division by zero if no position is kept


def stack_outputs(
    student: Output, extra_logits: Sequence[Tensor] = (), extra_maps: Sequence[Tensor] = ()
) -> Output:
    """Stack the student's logits and other maps along the channels, as one output without features.

    Args:
        student: output of the model.
        extra_logits: further logits ``(N, C, h, w)``, to which the student's evidence function also applies.
        extra_maps: maps ``(N, K, h, w)`` that are only interpolated.
    """
    grid_size = student.z.shape[2:]
    others = [resize_to(grid_size, x.to(student.z.dtype)) for x in (*extra_logits, *extra_maps)]
    n_evidence_channels = student.z.shape[1] * (1 + len(extra_logits))
    z = torch.cat([student.z, *others], 1)
    return Output(
        z, None, student.size, partial(_apply_evidence_to_first, student.evidence, n_evidence_channels)
    )


def _apply_evidence_to_first(evidence: Callable[[Tensor], Tensor], channels: int, logits: Tensor) -> Tensor:
    if channels == logits.shape[1]:
        return evidence(logits)
    return torch.cat([evidence(logits[:, :channels]), logits[:, channels:]], 1)


def resize_to(grid_size: torch.Size, x: Tensor) -> Tensor:
    """Interpolate a map to a given coarse grid."""
    return x if x.shape[2:] == grid_size else upsampling.interpolate(x, (grid_size[0], grid_size[1]))


def means_over_kept(
    output: Output, formula: Formula, labels: Tensor, mask_fn: Callable[[Tensor], Tensor]
) -> tuple[Tensor, ...]:
    """Like `masked_means`, but only over positions that the formula keeps; zero if it keeps none.

    Args:
        output: from `stack_outputs`.
        formula: returns values and, last, a bool mask of the positions to keep.
    """

    def masked_formula(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        *values, kept = formula(z, label)
        return *(torch.where(kept, value, 0.0) for value in values), kept.to(z.dtype)

    *sums, kept_fraction = masked_means(output, masked_formula, labels, mask_fn)
    return tuple(value / kept_fraction.detach().clamp(min=MIN_KEPT_FRACTION) for value in sums)


def unlabelled_target(batch: Batch) -> LabelledImages | None:
    """Return target images with unlabelled positions, and their labels; None if there are none."""
    if batch.target is not None or batch.unlabelled is None:
        return batch.target
    images = batch.unlabelled
    return LabelledImages(images, torch.full((len(images),), UNLABELLED, device=images.device))


def coarse_log_alpha(output: Output) -> Tensor:
    """Return log alpha on the network's own grid, in float32 or float64."""
    z = output.z if output.size is None else output.evidence(output.z)
    return z if z.dtype == torch.float64 else z.float()


def log_probability_of(log_probability: Tensor, label: Tensor) -> Tensor:
    """Return the log probability of the label at each position: ``(N, C, ...), (N, ...) -> (N, ...)``."""
    return log_probability.gather(1, label[:, None]).squeeze(1)


def expand_class_values(values: Tensor, reference: Tensor) -> Tensor:
    """Reshape values per class, ``(C,)``, for broadcasting with ``(N, C, ...)``."""
    return values.view(1, -1, *[1] * (reference.ndim - 2))
