"""Critic of WAAL (Shui et al., AISTATS 2020): separates labelled from unlabelled images."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    CachedForward,
    cast_to_weights,
    features_of,
    require_feature_width,
    reverse_gradient,
)
from ducats.objectives.batch import Batch, LabelledImages, Losses, is_labelled
from ducats.objectives.probes.discriminator import target_images


class Critic(AuxiliaryModule):
    """Scores features from 0 (labelled) to 1 (unlabelled), for images or for each position of a map."""

    provides = ("critic",)

    def __init__(
        self, context: AuxiliaryContext, *, hidden: int = 50, dropout: float = 0.5, penalty: float = 2.0
    ) -> None:
        super().__init__()
        width = require_feature_width(context, "a critic")
        self.penalty = penalty
        self.net = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1), nn.Sigmoid()
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores ``(R,)`` of features ``(R, D)``."""
        scores: Tensor = self.net(cast_to_weights(features, self.net)).squeeze(1)
        return scores

    def distance(self, unlabelled: Tensor, labelled: Tensor, mask: Tensor) -> Tensor:
        """Compute ``mean g(U) - gamma mean g(L)`` with ``gamma = |L| / |U|``.

        Args:
            unlabelled: features ``(U, D)``.
            labelled: features ``(L, D)``.
            mask: bool ``(L,)``, mask of those that have a label.
        """
        gap: Tensor = self(unlabelled).mean() - (self(labelled) * mask).sum() / len(unlabelled)
        return gap

    def gradient_penalty(self, unlabelled: Tensor, labelled: Tensor) -> Tensor:
        """Gradient penalty ``mean (||grad g|| - 1)^2`` at and between the features, for the critic alone."""
        unlabelled, labelled = (cast_to_weights(x.detach(), self.net) for x in (unlabelled, labelled))
        index = torch.arange(max(len(unlabelled), len(labelled)), device=unlabelled.device)
        weight = torch.rand(len(index), 1, device=unlabelled.device, dtype=unlabelled.dtype)
        # The shorter one is repeated.
        between = (
            weight * unlabelled[index % len(unlabelled)] + (1 - weight) * labelled[index % len(labelled)]
        )
        points = torch.cat([between, unlabelled, labelled]).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self(points).sum(), points, create_graph=True)
        gradient_norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return ((gradient_norm - 1) ** 2).mean()

    def adversarial_losses(self, model: Callable[[Tensor], Output], batch: Batch, strength: float) -> Losses:
        """Return the losses of the critic, which separates labelled from unlabelled features.

        Args:
            strength: weight of the reversed gradient with respect to the features.
        """
        images = target_images(batch)
        if images is None:
            return {}
        streams = [stream for stream in (batch.source, batch.labelled) if stream is not None]
        labelled = torch.cat([_flat_features(model(stream.images)) for stream in streams])
        unlabelled, mask = _flat_features(model(images)), _labelled_mask(streams, labelled)
        distance = self.distance(
            reverse_gradient(unlabelled, strength), reverse_gradient(labelled, strength), mask
        )
        return {"distance": -distance, "penalty": self.penalty * self.gradient_penalty(unlabelled, labelled)}

    def losses(self, model: CachedForward, batch: Batch) -> Losses:
        """Return the losses that train the critic alone."""
        return {
            f"probe/{name}": loss
            for name, loss in self.adversarial_losses(model.eval_forward, batch, 0.0).items()
        }

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        """Return the scores."""
        features = features_of(output)
        return {"critic": self(_flat_features(output)).reshape(len(features), *features.shape[2:])}


def _flat_features(output: Output) -> Tensor:
    """Features as ``(R, D)``, one row per image or per position of a map."""
    return features_of(output).movedim(1, -1).flatten(0, -2)


def _labelled_mask(streams: Sequence[LabelledImages], rows: Tensor) -> Tensor:
    """Mask of labelled rows; all rows of maps, as a coarse position covers many pixels."""
    if streams[0].labels.ndim == 1:
        return is_labelled(torch.cat([stream.labels for stream in streams]))
    return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
