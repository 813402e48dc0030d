"""Committee of TQS (Fu et al., CVPR 2021): classifiers that agree on transferable samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
from ducats.objectives.probes.member_views import MEMBER_VIEWS, apply_member_view, sample_member_view
from ducats.utils.errors import UserError

MEMBER_INITS: Sequence[Callable[[Tensor], object]] = (
    partial(nn.init.xavier_uniform_, gain=math.sqrt(2)),  # gain of a ReLU
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
    nn.init.kaiming_uniform_,
    partial(nn.init.kaiming_normal_, a=math.sqrt(5)),
)


class Committee(AuxiliaryModule):
    """Five linear classifiers on the model's features, each with its own initialisation and augmentation.

    Each member learns from every fifth labelled image of a batch, in the member's own view of the stored
    image. This takes one additional forward pass for all members.
    """

    provides = ("committee",)
    reads_stored_images = True

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
        assert batch.stored_source is not None
        shape = batch.source.images.shape[1:]
        images, labels = views_of_members(batch.stored_source, shape), batch.source.labels
        if batch.labelled is not None:
            assert batch.stored_labelled is not None
            target = views_of_members(batch.stored_labelled, shape, first_member=len(labels))
            images, labels = torch.cat([images, target]), torch.cat([labels, batch.labelled.labels])
        return {"probe/committee": self.loss(features_of(model.eval_forward(images)), labels)}

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


def views_of_members(stored: Tensor, shape: torch.Size, first_member: int = 0) -> Tensor:
    """Return each image in the view of its member, ``(N, *shape)``; member ``first_member`` has the first.

    Args:
        stored: images, or embeddings of fixed views ``(N, views, D)``, which the members share out.
        shape: of the network's input.
    """
    if stored.ndim == 4:
        return augment_per_member(stored, (shape[-2], shape[-1]), first_member)
    member = (first_member + torch.arange(len(stored), device=stored.device)) % len(MEMBER_VIEWS)
    return stored[torch.arange(len(stored), device=stored.device), member % stored.shape[1]]


def augment_per_member(images: Tensor, size: tuple[int, int], first_member: int = 0) -> Tensor:
    """Apply the members' augmentations in turn, and crop to ``size``: ``(N, channels, height, width)``.

    Image i belongs to member ``first_member + i`` modulo their number. Images that are smaller than the crop
    are enlarged. Samples from torch's default generator of the images' device.

    Args:
        images: stored images, uint8.
    """
    number = len(MEMBER_VIEWS)
    result = torch.empty(*images.shape[:2], *size, device=images.device)
    for offset in range(min(number, len(images))):
        share, view = images[offset::number].float() / 255, MEMBER_VIEWS[(first_member + offset) % number]
        height, width = (max(sides) for sides in zip(share.shape[-2:], size, strict=True))
        if share.shape[-2:] != (height, width):
            share = F.interpolate(share, (height, width), mode="bilinear")
        params = sample_member_view(view, len(share), height, width, images.device)
        result[offset::number] = apply_member_view(share, view, params, size)
    return result
