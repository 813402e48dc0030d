"""Critic of WAAL (Shui et al., AISTATS 2020): separates labelled from unlabelled images."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ducats.objectives.batch import Batch, Labelled, Losses, known
from ducats.objectives.companion import (
    Beside,
    Companion,
    Remembered,
    as_weights,
    reverse_gradient,
    width_of,
)
from ducats.objectives.witnesses.discriminator import target_images
from ducats.rows import Output


class Critic(Companion):
    """Scores features from 0 (labelled) to 1 (unlabelled), for images or for each position of a map.

    Args:
        hidden: width of the hidden layer.
        dropout: dropout probability of the hidden layer.
        penalty: weight of the gradient penalty.
    """

    tells = ("critic",)

    def __init__(
        self, beside: Beside, *, hidden: int = 50, dropout: float = 0.5, penalty: float = 2.0
    ) -> None:
        super().__init__()
        width = width_of(beside, "a critic")
        self.penalty = penalty
        self.net = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1), nn.Sigmoid()
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the scores ``(R,)`` of features ``(R, D)``."""
        scores: Tensor = self.net(as_weights(rows, self.net)).squeeze(1)
        return scores

    def distance(self, unlabelled: Tensor, labelled: Tensor, counts: Tensor) -> Tensor:
        """Compute ``mean g(U) - gamma mean g(L)`` with ``gamma = |L| / |U|``.

        Args:
            unlabelled: features ``(U, D)``.
            labelled: features ``(L, D)``.
            counts: bool ``(L,)``, mask of those that have a label.
        """
        gap: Tensor = self(unlabelled).mean() - (self(labelled) * counts).sum() / len(unlabelled)
        return gap

    def steepness(self, unlabelled: Tensor, labelled: Tensor) -> Tensor:
        """Gradient penalty ``mean (||grad g|| - 1)^2`` at and between the features, for the critic alone."""
        some, others = (as_weights(x.detach(), self.net) for x in (unlabelled, labelled))
        place = torch.arange(max(len(some), len(others)), device=some.device)
        share = torch.rand(len(place), 1, device=some.device, dtype=some.dtype)
        # The shorter one is repeated.
        between = share * some[place % len(some)] + (1 - share) * others[place % len(others)]
        rows = torch.cat([between, some, others]).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self(rows).sum(), rows, create_graph=True)
        length: Tensor = torch.linalg.vector_norm(slope, dim=1)
        return ((length - 1) ** 2).mean()

    def rivalry(self, said: Callable[[Tensor], Output], batch: Batch, strength: float) -> Losses:
        """Return the losses of the critic, which separates labelled from unlabelled features.

        Args:
            strength: weight of the reversed gradient with respect to the features.
        """
        images = target_images(batch)
        if images is None:
            return {}
        parts = [part for part in (batch.source, batch.labelled) if part is not None]
        labelled = torch.cat([_rows(said(part.images)) for part in parts])
        unlabelled, counts = _rows(said(images)), _counts(parts, labelled)
        apart = self.distance(
            reverse_gradient(unlabelled, strength), reverse_gradient(labelled, strength), counts
        )
        return {"distance": -apart, "penalty": self.penalty * self.steepness(unlabelled, labelled)}

    def losses(self, model: Remembered, batch: Batch) -> Losses:
        """Return the losses that train the critic alone."""
        return {f"witness/{name}": loss for name, loss in self.rivalry(model.aside, batch, 0.0).items()}

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """Return the scores."""
        rows, features = _rows(output), output.features
        assert features is not None
        return {"critic": self(rows).reshape(len(features), *features.shape[2:])}


def _rows(output: Output) -> Tensor:
    """Features as ``(R, D)``, one row per image or per position of a map."""
    assert output.features is not None
    return output.features.movedim(1, -1).flatten(0, -2)


def _counts(parts: Sequence[Labelled], rows: Tensor) -> Tensor:
    """Mask of labelled rows; all rows of maps, as a coarse position covers many pixels."""
    if parts[0].labels.ndim == 1:
        return known(torch.cat([part.labels for part in parts]))
    return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
