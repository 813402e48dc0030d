"""Objective of EADA (Xie et al., AAAI 2022): cross-entropy, and alignment of free energies.

Class energies are ``E = -z``. The free energy ``F = -log sum exp(-E)`` is high if no class fits.
"""

import torch
from torch import Tensor

from ducats.acquisition.criteria import free_energy
from ducats.objectives.auxiliary import AuxiliaryContext, AuxiliaryModule, ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_labelled
from ducats.objectives.reduction import masked_means, unlabelled_means
from ducats.objectives.softmax import softmax


class RunningFreeEnergy(AuxiliaryModule):
    """Running mean of the source's free energy, with a random momentum for each batch."""

    delta: Tensor
    is_initialised: Tensor
    shardable = True

    def __init__(self, context: AuxiliaryContext) -> None:  # noqa: ARG002 - common signature
        super().__init__()
        self.register_buffer("delta", torch.zeros(()))
        self.register_buffer("is_initialised", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def update(self, mean: Tensor) -> None:
        """Update ``delta <- xi delta + (1 - xi) mean``, xi uniform in [0, 1); the first call sets it."""
        momentum = torch.rand((), device=self.delta.device)
        moved = momentum * self.delta + (1 - momentum) * mean
        self.delta.copy_(torch.where(self.is_initialised, moved, mean))
        self.is_initialised.fill_(True)


def eada(
    model: ForwardFn,
    batch: Batch,
    running_energy: RunningFreeEnergy,
    *,
    align: float = 0.01,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labelled data; alignment of the target's free energy with the source's.

    Args:
        align: weight of ``max(0, F(x) - delta)`` on unlabelled target data.
    """
    losses = softmax(model, batch, source=source, target=target)
    if not align:
        return losses
    source_output = model(batch.source.images)
    (mean,) = masked_means(
        source_output._replace(z=source_output.z.detach()), _energy, batch.source.labels, is_labelled
    )
    running_energy.update(mean)
    excess = unlabelled_means(model, batch, lambda z: ((free_energy(z) - running_energy.delta).clamp(min=0),))
    if excess is not None:
        losses["unlabelled/energy"] = align * excess[0]
    return losses


def _energy(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return (free_energy(z),)


EADA_SPEC = ObjectiveSpec(eada, RunningFreeEnergy)
