"""A discriminator of source and target."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.objectives.batch import Batch, Losses
from ducats.objectives.companion import Beside, Companion, Remembered, as_weights, width_of
from ducats.rows import Output


class Discriminator(Companion):
    """Tells source from target by the features: of an image, or at each place of its map.

    Two hidden layers, as the domain-adversarial baselines have.

    Args:
        beside: what it is made for.
        hidden: width of the hidden layers; 0: none, it is linear.
    """

    tells = ("domain",)

    def __init__(self, beside: Beside, *, hidden: int = 500) -> None:
        super().__init__()
        width = width_of(beside, "a discriminator")
        layer = (lambda i, o: nn.Conv2d(i, o, 1)) if beside.pixels else nn.Linear
        inner = [layer(width, hidden), nn.ReLU(), layer(hidden, hidden), nn.ReLU()] if hidden else []
        self.net = nn.Sequential(*inner, layer(hidden or width, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Log odds of the source, ``(N,)`` or ``(N, h, w)``."""
        odds: Tensor = self.net(as_weights(features, self.net)).squeeze(1)
        return odds

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        """Binary cross-entropy, both domains weighing the same."""
        return (F.softplus(-self(source)).mean() + F.softplus(self(target)).mean()) / 2

    def losses(self, model: Remembered, batch: Batch) -> Losses:
        """Learn to tell the domains apart."""
        target = target_images(batch)
        if target is None:
            return {}
        source = model.aside(batch.source.images).features
        unknown = model.aside(target).features
        assert source is not None
        assert unknown is not None
        return {"witness/domain": self.loss(source, unknown)}

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """Probability of the source."""
        assert output.features is not None
        return {"domain": torch.sigmoid(self(output.features))}


def target_images(batch: Batch) -> Tensor | None:
    """Unlabelled target images: of a stream of their own, or those whose pixels are bought."""
    return batch.unlabelled if batch.target is None else batch.target.images
