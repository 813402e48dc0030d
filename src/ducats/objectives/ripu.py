"""Objective of RIPU (Xie et al., CVPR 2022): cross-entropy, local consistency and negative learning."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.objectives.auxiliary import ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, LabelledImages, Losses
from ducats.objectives.reduction import masked_means
from ducats.objectives.softmax import softmax
from ducats.utils.errors import UserError

EPSILON = 1e-6  # added to 1 - p in the published code
VOID_CODE = 255  # of pixels without a class, in the published code


def ripu(
    model: ForwardFn,
    batch: Batch,
    *,
    consistency: float = 0.1,
    negative: float = 1.0,
    threshold: float = 0.05,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy, similar predictions around source boundaries, and no unlikely class on the target.

    Args:
        consistency: weight of the l1 distance between the probabilities of a source pixel on a boundary and
            their mean over its 3 x 3 neighbourhood.
        negative: weight of ``-log(1 - p)`` of unlikely classes, at all target pixels.
        threshold: a class with a lower probability is unlikely.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"objective.params.threshold must be above 0 and at most 1, not {threshold}")
    if model(batch.source.images).size is None:
        raise UserError("the objective 'ripu' is for segmentation; choose another objective.name")
    losses = softmax(model, batch, source=source, target=target)
    if consistency:
        losses["source/consistency"] = consistency * _local_consistency(model, batch.source)
    if negative and batch.target is not None:
        losses["target/negative"] = negative * _negative_learning(model, batch.target, threshold)
    return losses


def _local_consistency(model: ForwardFn, source: LabelledImages) -> Tensor:
    """Return the mean distance to the neighbourhood over the pixels on a semantic boundary."""
    (distance,) = masked_means(
        model(source.images), _distance_to_neighbourhood, source.labels, _is_boundary, neighbours=1
    )
    return distance


def _distance_to_neighbourhood(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    p = z.softmax(1)
    mean = p
    for axis in (-1, -2):  # the edge is repeated outside the image
        length = mean.shape[axis]
        padded = torch.cat([mean.narrow(axis, 0, 1), mean, mean.narrow(axis, length - 1, 1)], axis)
        mean = (mean + padded.narrow(axis, 0, length) + padded.narrow(axis, 2, length)) / 3
    return ((p - mean).abs().sum(1),)


def _is_boundary(labels: Tensor) -> Tensor:
    """Return a mask of the labelled pixels whose label differs from the mean over their 3 x 3 neighbourhood.

    As published, void counts as 255 and pixels outside the image as 0: all pixels at the border of the image
    are on a boundary, except those that are of class 0 as all their neighbours.
    """
    code = torch.where(labels >= 0, labels.int(), VOID_CODE)
    total = F.pad(code, (1, 1, 1, 1))
    total = total[..., :-2] + total[..., 1:-1] + total[..., 2:]
    total = total[..., :-2, :] + total[..., 1:-1, :] + total[..., 2:, :]
    return (total != 9 * code) & (labels >= 0)


def _negative_learning(model: ForwardFn, target: LabelledImages, threshold: float) -> Tensor:
    """Return the mean of ``-log(1 - p)`` over all unlikely classes of all pixels; zero if there are none."""

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        p = z.softmax(1)
        is_unlikely = p.detach() < threshold
        return torch.where(is_unlikely, -(1 - p + EPSILON).log(), 0.0).sum(1), is_unlikely.sum(1)

    total, count = masked_means(
        model(target.images), formula, target.labels, lambda labels: torch.ones_like(labels, dtype=torch.bool)
    )
    return total / count.clamp(min=torch.finfo(total.dtype).tiny)


RIPU_SPEC = ObjectiveSpec(ripu)
