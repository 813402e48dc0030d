"""Objective of EADA (Xie et al., AAAI 2022): cross-entropy, and alignment of free energies.

Class energies are ``E = -z``. The free energy ``F = -log sum exp(-E)`` is high if no class fits.
"""

import torch
from torch import Tensor

from ducats.criteria import free_energy
from ducats.objectives.batch import Batch, Forward, Losses, known
from ducats.objectives.companion import Beside, Companion
from ducats.objectives.means import means
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import over_unlabelled


class Level(Companion):
    """Running mean of the source's free energy, with a random momentum for each batch."""

    delta: Tensor
    begun: Tensor
    weightless = True

    def __init__(self, beside: Beside) -> None:  # noqa: ARG002 - common signature
        super().__init__()
        self.register_buffer("delta", torch.zeros(()))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def follow(self, mean: Tensor) -> None:
        """Update ``delta <- xi delta + (1 - xi) mean``, xi uniform in [0, 1); the first call sets it."""
        share = torch.rand((), device=self.delta.device)
        moved = share * self.delta + (1 - share) * mean
        self.delta.copy_(torch.where(self.begun, moved, mean))
        self.begun.fill_(True)


def eada(
    model: Forward,
    batch: Batch,
    level: Level,
    *,
    align: float = 0.01,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labelled data; alignment of the target's free energy with the source's.

    Args:
        align: weight of ``max(0, F(x) - delta)`` on unlabelled target data.
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
    """
    losses = softmax(model, batch, source=source, target=target)
    if not align:
        return losses
    ours = model(batch.source.images)
    (mean,) = means(ours._replace(z=ours.z.detach()), _energy, batch.source.labels, known)
    level.follow(mean)
    excess = over_unlabelled(model, batch, lambda z: ((free_energy(z) - level.delta).clamp(min=0),))
    if excess is not None:
        losses["unlabelled/energy"] = align * excess[0]
    return losses


def _energy(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (free_energy(z),)
