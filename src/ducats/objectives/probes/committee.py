"""Committee of TQS (Fu et al., CVPR 2021): classifiers that agree on transferable samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    CachedForward,
    cast_to_weights,
    features_of,
    require_feature_width,
)
from ducats.objectives.batch import Batch, Losses, is_labelled
from ducats.utils.errors import UserError

if TYPE_CHECKING:
    from torchvision.transforms import v2

MEMBER_INITS: Sequence[Callable[[Tensor], object]] = (
    partial(nn.init.xavier_uniform_, gain=math.sqrt(2)),  # gain of a ReLU
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
    nn.init.kaiming_uniform_,
    partial(nn.init.kaiming_normal_, a=math.sqrt(5)),
)


class Committee(AuxiliaryModule):
    """Five linear classifiers on the model's features, each with its own initialisation and augmentation.

    Each member learns from every fifth labelled image of a batch, with the member's augmentation. This takes
    one additional forward pass for all members.
    """

    provides = ("committee",)
    cuda_graph_safe = False

    def __init__(self, context: AuxiliaryContext) -> None:
        super().__init__()
        if context.per_pixel:
            raise UserError(
                "a committee supports whole images only, not pixels; use another query.name or objective.name"
            )
        width = require_feature_width(context, "a committee")
        self.members = nn.ModuleList(nn.Linear(width, context.classes) for _ in MEMBER_INITS)
        for member, init in zip(self.members, MEMBER_INITS, strict=True):
            assert isinstance(member, nn.Linear)
            init(member.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of each member, ``(N, members, C)``."""
        return torch.stack([member(cast_to_weights(features, member)) for member in self.members], 1)

    def losses(self, model: CachedForward, batch: Batch) -> Losses:
        """Return the cross-entropy of the members on their shares of the labelled images."""
        streams = [stream for stream in (batch.source, batch.labelled) if stream is not None]
        images = torch.cat([stream.images for stream in streams])
        labels = torch.cat([stream.labels for stream in streams])
        features = features_of(model.eval_forward(augment_per_member(images)))
        return {"probe/committee": self.loss(features, labels)}

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Sum of the members' mean cross-entropies; sample i belongs to member i modulo their number."""
        logits, number = self(features), len(self.members)
        member = torch.arange(len(labels), device=labels.device) % number
        is_own = F.one_hot(member, number) * is_labelled(labels)[:, None]  # (N, members)
        targets = labels.clamp(min=0)[:, None].expand(-1, number)
        values = F.cross_entropy(logits.movedim(1, -1), targets, reduction="none")
        return ((values * is_own).sum(0) / is_own.sum(0).clamp(min=1)).sum()

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        """Return the probabilities of each member."""
        return {"committee": self(features_of(output)).softmax(2)}


def augment_per_member(images: Tensor) -> Tensor:
    """Augment each member's images and return them in their order: ``(N, channels, height, width)``.

    Samples from torch's global CPU generator, once for all images of a member.
    """
    result = torch.empty_like(images)
    for number, augmentation in enumerate(_member_augmentations(images.shape[1])):
        share = images[number :: len(MEMBER_INITS)]
        if len(share):
            augmented = augmentation(share)
            # A perspective may be degenerate on a small image: torchvision then returns non-finite values.
            finite = torch.where(augmented.isfinite(), augmented, share)
            result[number :: len(MEMBER_INITS)] = finite.clamp(0, 1)
    return result


def _member_augmentations(channels: int) -> "Sequence[v2.Transform]":
    """The published augmentations without crops; colour changes only for 1 or 3 channels."""
    from torchvision.transforms import v2  # takes seconds to import

    coloured = channels in (1, 3)

    def pipeline(*steps: v2.Transform) -> v2.Transform:
        supported = [
            step for step in steps if coloured or not isinstance(step, v2.ColorJitter | v2.RandomGrayscale)
        ]
        return v2.Compose([v2.RandomHorizontalFlip(), *supported])

    affine = partial(v2.RandomAffine, interpolation=v2.InterpolationMode.BILINEAR)
    perspective, grey = v2.RandomPerspective(), v2.RandomGrayscale(0.1)
    colour_jitter = v2.ColorJitter(0.2, 0.2, 0.2)
    return (
        pipeline(affine(30, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=0.2), grey),
        pipeline(perspective, colour_jitter),
        pipeline(affine(30), colour_jitter),
        pipeline(affine(10, shear=0.1), perspective),
        pipeline(perspective, grey),
    )
