"""TQS's committee (Fu et al., CVPR 2021): classifiers that agree where a class transfers."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.objectives.batch import Batch, Losses, known
from ducats.objectives.companion import Beside, Companion, Remembered, as_weights, width_of
from ducats.rows import Output

if TYPE_CHECKING:
    from torchvision.transforms import v2

START: Sequence[Callable[[Tensor], object]] = (
    partial(nn.init.xavier_uniform_, gain=math.sqrt(2)),  # the gain of a ReLU
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
    nn.init.kaiming_uniform_,
    partial(nn.init.kaiming_normal_, a=math.sqrt(5)),
)


class Committee(Companion):
    """Five linear classifiers on the model's features, each with its own start and its own view of images.

    A member learns from each fifth labelled image of a batch, changed in the member's own way: one more
    forward pass for all of them together.

    Args:
        beside: what it is made for.
    """

    tells = ("committee",)

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        if beside.pixels:
            raise UserError(
                "a committee looks at images, not at pixels: choose another query.name or objective.name"
            )
        width = width_of(beside, "a committee")
        self.members = nn.ModuleList(nn.Linear(width, beside.classes) for _ in START)
        for member, start in zip(self.members, START, strict=True):
            assert isinstance(member, nn.Linear)
            start(member.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of each member, ``(N, members, C)``."""
        return torch.stack([member(as_weights(features, member)) for member in self.members], 1)

    def losses(self, model: Remembered, batch: Batch) -> Losses:
        """Cross-entropy of each member on its own share of source and bought images."""
        parts = [part for part in (batch.source, batch.labelled) if part is not None]
        images = torch.cat([part.images for part in parts])
        labels = torch.cat([part.labels for part in parts])
        features = model.aside(changed(images)).features
        assert features is not None
        return {"witness/committee": self.loss(features, labels)}

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Sum of the members' mean cross-entropies; row i is for member i modulo their number."""
        logits, number = self(features), len(self.members)
        member = torch.arange(len(labels), device=labels.device) % number
        mine = F.one_hot(member, number) * known(labels)[:, None]  # (N, members)
        truth = labels.clamp(min=0)[:, None].expand(-1, number)
        values = F.cross_entropy(logits.movedim(1, -1), truth, reduction="none")
        return ((values * mine).sum(0) / mine.sum(0).clamp(min=1)).sum()

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """Probabilities that each member gives."""
        assert output.features is not None
        return {"committee": self(output.features).softmax(2)}


def changed(images: Tensor) -> Tensor:
    """Each member's images in its own view, in their places: ``(N, channels, height, width)``.

    Draws from torch's global generator on the CPU, once for all images of a member.
    """
    result = torch.empty_like(images)
    for number, change in enumerate(_views(images.shape[1])):
        share = images[number :: len(START)]
        if len(share):
            bent = change(share)
            # A perspective may fold a small image up: torchvision then gives what is no number.
            result[number :: len(START)] = torch.where(bent.isfinite(), bent, share).clamp(0, 1)
    return result


def _views(channels: int) -> "Sequence[v2.Transform]":
    """The published changes without their crops; colours where there are some, or one of grey."""
    from torchvision.transforms import v2  # takes seconds to import

    coloured = channels in (1, 3)

    def pipeline(*steps: v2.Transform) -> v2.Transform:
        bent = [
            step for step in steps if coloured or not isinstance(step, v2.ColorJitter | v2.RandomGrayscale)
        ]
        return v2.Compose([v2.RandomHorizontalFlip(), *bent])

    turned = partial(v2.RandomAffine, interpolation=v2.InterpolationMode.BILINEAR)
    tilted, tinted, grey = v2.RandomPerspective(), v2.ColorJitter(0.2, 0.2, 0.2), v2.RandomGrayscale(0.1)
    return (
        pipeline(turned(30, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=0.2), grey),
        pipeline(tilted, tinted),
        pipeline(turned(30), tinted),
        pipeline(turned(10, shear=0.1), tilted),
        pipeline(tilted, grey),
    )
