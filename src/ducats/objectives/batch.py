"""Inputs and outputs of objectives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ducats.data.domain import UNLABELLED
from ducats.models.output import Output

ForwardFn = Callable[[Tensor], Output]
Losses = dict[str, Tensor]  # weighted scalars; the names appear in progress and records


class LabelledImages(NamedTuple):
    """Images and their labels."""

    images: Tensor  # float32 (N, channels, height, width) in [0, 1], or embeddings (N, D)
    labels: Tensor  # int64 (N,), or integer maps (N, height, width); negative values are ignored


@dataclass(frozen=True)
class Batch:
    """Data of one training step, by stream."""

    source: LabelledImages
    labelled: LabelledImages | None  # labelled target images; None before the first round
    unlabelled: Tensor | None  # target images without label; None when all are labelled
    target: LabelledImages | None = None  # segmentation: images with maps of labels, UNLABELLED and VOID
    strong: Tensor | None = None  # `unlabelled` in the strong view, if the objective reads it
    pseudo_labelled: LabelledImages | None = None  # target images labelled by the auxiliary module
    # `source` and `labelled` before the view, if a module reads them: uint8 images, or embeddings of all
    # fixed views (N, views, D).
    stored_source: Tensor | None = None
    stored_labelled: Tensor | None = None
    has_target_labels: bool = True  # whether `target` may have labels; False before the first round


def is_labelled(labels: Tensor) -> Tensor:
    """Return a mask of the positions that have a label."""
    return labels >= 0


def is_unlabelled(labels: Tensor) -> Tensor:
    """Return a mask of the positions that can still be labelled."""
    return labels == UNLABELLED
