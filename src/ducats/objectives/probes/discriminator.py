"""Domain discriminator."""

from collections.abc import Mapping

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
from ducats.objectives.batch import Batch, Losses


class Discriminator(AuxiliaryModule):
    """Classifies source and target from the features of an image, or at each position of a map.

    It has two hidden layers, as in the domain-adversarial baselines.

    Args:
        hidden: width of the hidden layers; 0: linear.
    """

    provides = ("domain",)

    def __init__(self, context: AuxiliaryContext, *, hidden: int = 500) -> None:
        super().__init__()
        width = require_feature_width(context, "a discriminator")
        layer = (lambda i, o: nn.Conv2d(i, o, 1)) if context.per_pixel else nn.Linear
        inner = [layer(width, hidden), nn.ReLU(), layer(hidden, hidden), nn.ReLU()] if hidden else []
        self.net = nn.Sequential(*inner, layer(hidden or width, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the log odds of the source, ``(N,)`` or ``(N, h, w)``."""
        log_odds: Tensor = self.net(cast_to_weights(features, self.net)).squeeze(1)
        return log_odds

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        """Binary cross-entropy with equal weights of the domains."""
        return (F.softplus(-self(source)).mean() + F.softplus(self(target)).mean()) / 2

    def losses(self, model: CachedForward, batch: Batch) -> Losses:
        """Return the loss that trains the discriminator alone."""
        target = target_images(batch)
        if target is None:
            return {}
        features = (features_of(model.eval_forward(images)) for images in (batch.source.images, target))
        return {"probe/domain": self.loss(*features)}

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        """Return the probability of the source."""
        return {"domain": torch.sigmoid(self(features_of(output)))}


def target_images(batch: Batch) -> Tensor | None:
    """Return the unlabelled target images, or in segmentation those with label maps."""
    return batch.unlabelled if batch.target is None else batch.target.images
