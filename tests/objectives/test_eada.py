"""Objective of EADA: running free energy of the source, and alignment of the target."""

import torch
import torch.nn.functional as F
from tiny_network import TinyNetwork, auxiliary_context, flatten_maps, image_batch, map_batch

from ducats.objectives.batch import Batch
from ducats.objectives.eada import RunningFreeEnergy, eada


def test_running_mean_with_random_momentum() -> None:
    running_energy = RunningFreeEnergy(auxiliary_context(TinyNetwork()))
    means = [torch.tensor(value) for value in (-2.0, -1.0, -4.0, -3.0)]
    torch.manual_seed(7)
    momenta = [torch.rand(()) for _ in means]
    expected = means[0]
    torch.manual_seed(7)
    for number, mean in enumerate(means):
        running_energy.update(mean)
        if number:
            expected = momenta[number] * expected + (1 - momenta[number]) * mean
        torch.testing.assert_close(running_energy.delta, expected)
    assert {"delta", "is_initialised"} == running_energy.state_dict().keys()
    restored = RunningFreeEnergy(auxiliary_context(TinyNetwork()))
    restored.load_state_dict(running_energy.state_dict())
    torch.manual_seed(8)
    restored.update(torch.tensor(5.0))
    torch.manual_seed(8)
    running_energy.update(torch.tensor(5.0))
    assert torch.equal(restored.delta, running_energy.delta)


def test_losses_by_hand() -> None:
    model, batch = TinyNetwork(), image_batch()
    running_energy = RunningFreeEnergy(auxiliary_context(model))
    losses = eada(model, batch, running_energy, align=0.5, source=2.0)
    assert batch.labelled is not None
    assert batch.unlabelled is not None
    source, target = model(batch.source.images).z, model(batch.unlabelled).z
    torch.testing.assert_close(losses["source/nll"], 2 * F.cross_entropy(source[:5], batch.source.labels[:5]))
    torch.testing.assert_close(
        losses["labelled/nll"], F.cross_entropy(model(batch.labelled.images).z, batch.labelled.labels)
    )
    delta = float(
        (-source[:5].exp().sum(1).log()).mean().detach()
    )  # the first batch, without the unlabelled image
    energy = -target.exp().sum(1).log()
    assert (energy > delta).any()
    assert (energy < delta).any()
    hinge = torch.stack([max(e - delta, torch.zeros_like(e)) for e in energy]).mean()
    torch.testing.assert_close(losses["unlabelled/energy"], 0.5 * hinge, rtol=1e-6, atol=1e-7)


def test_only_target_energies_have_a_gradient() -> None:
    model, batch = TinyNetwork(), image_batch()
    batch.source.images.requires_grad_()
    assert batch.unlabelled is not None
    batch.unlabelled.requires_grad_()
    eada(model, batch, RunningFreeEnergy(auxiliary_context(model)))["unlabelled/energy"].backward()
    assert batch.source.images.grad is None
    assert batch.unlabelled.grad is not None
    assert batch.unlabelled.grad.abs().sum() > 0


def test_pixels_count_as_samples() -> None:
    model, batch = TinyNetwork(pixels=True), map_batch()
    losses = eada(model, batch, RunningFreeEnergy(auxiliary_context(model)), align=1.0)
    assert batch.target is not None
    source, target = flatten_maps(model(batch.source.images).z), flatten_maps(model(batch.target.images).z)
    labels, target_labels = batch.source.labels.flatten().long(), batch.target.labels.flatten().long()
    delta = -source[labels >= 0].exp().sum(1).log().mean()
    energy = -target[target_labels == -1].exp().sum(1).log()
    torch.testing.assert_close(
        losses["unlabelled/energy"], (energy - delta).clamp(min=0).mean(), rtol=1e-5, atol=1e-6
    )
    is_labelled = target_labels >= 0
    torch.testing.assert_close(
        losses["labelled/nll"], F.cross_entropy(target[is_labelled], target_labels[is_labelled])
    )


def test_running_mean_without_unlabelled_target() -> None:
    model, batch = TinyNetwork(), image_batch()
    running_energy = RunningFreeEnergy(auxiliary_context(model))
    assert eada(model, Batch(batch.source, None, None), running_energy).keys() == {"source/nll"}
    assert bool(running_energy.is_initialised)
    unused = RunningFreeEnergy(auxiliary_context(model))
    assert "unlabelled/energy" not in eada(model, batch, unused, align=0.0)
    assert not bool(unused.is_initialised)
