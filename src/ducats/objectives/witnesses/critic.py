"""WAAL's critic (Shui et al., AISTATS 2020): how unlike the labelled images one is."""

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
    """Scores features between 0, labelled, and 1, unlabelled; of maps, each place by itself.

    Args:
        beside: what it is made for.
        hidden: width of its hidden layer.
        dropout: share of the hidden layer that is dropped in training.
        penalty: weight of what keeps its slope near 1.
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
        """Scores of features ``(R, D)``: ``(R,)``."""
        scores: Tensor = self.net(as_weights(rows, self.net)).squeeze(1)
        return scores

    def distance(self, unlabelled: Tensor, labelled: Tensor, counts: Tensor) -> Tensor:
        """``mean g(U) - gamma mean g(L)``, gamma being ``|L| / |U|``.

        Args:
            unlabelled: features ``(U, D)``.
            labelled: features ``(L, D)``.
            counts: bool ``(L,)``: which of them have a label indeed.
        """
        gap: Tensor = self(unlabelled).mean() - (self(labelled) * counts).sum() / len(unlabelled)
        return gap

    def steepness(self, unlabelled: Tensor, labelled: Tensor) -> Tensor:
        """``mean (||slope of g|| - 1)^2`` at both kinds of features and between them; a loss for it alone."""
        some, others = (as_weights(x.detach(), self.net) for x in (unlabelled, labelled))
        place = torch.arange(max(len(some), len(others)), device=some.device)
        share = torch.rand(len(place), 1, device=some.device, dtype=some.dtype)
        # The shorter one is used again from its start.
        between = share * some[place % len(some)] + (1 - share) * others[place % len(others)]
        rows = torch.cat([between, some, others]).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self(rows).sum(), rows, create_graph=True)
        length: Tensor = torch.linalg.vector_norm(slope, dim=1)
        return ((length - 1) ** 2).mean()

    def rivalry(self, said: Callable[[Tensor], Output], batch: Batch, strength: float) -> Losses:
        """Its own losses, to be lowered: it drives labelled and unlabelled apart.

        Args:
            said: the model.
            batch: the step's data.
            strength: how much of its gradient goes on to the features, turned round.
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
        """Learn to tell labelled from unlabelled images."""
        return {f"witness/{name}": loss for name, loss in self.rivalry(model.aside, batch, 0.0).items()}

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """The score."""
        rows, features = _rows(output), output.features
        assert features is not None
        return {"critic": self(rows).reshape(len(features), *features.shape[2:])}


def _rows(output: Output) -> Tensor:
    """Features as rows, ``(R, D)``: of each image, or of each place of its map."""
    assert output.features is not None
    return output.features.movedim(1, -1).flatten(0, -2)


def _counts(parts: Sequence[Labelled], rows: Tensor) -> Tensor:
    """Which rows have a label; of maps all, since a place of the coarse grid covers many pixels."""
    if parts[0].labels.ndim == 1:
        return known(torch.cat([part.labels for part in parts]))
    return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
