"""Objective of EADA: running free energy of the source, and alignment of the target."""

import torch
import torch.nn.functional as F
from tiny_network import LABELLED, SOURCE, UNLABELLED_IMAGES, TinyNetwork, auxiliary_context, image_batch
from torch import Tensor

from ducats.objectives.batch import Batch
from ducats.objectives.eada import RunningFreeEnergy, eada


def running_energy() -> RunningFreeEnergy:
    return RunningFreeEnergy(auxiliary_context(TinyNetwork()))


def free_energy(z: Tensor) -> Tensor:
    return -z.exp().sum(1).log()


def test_running_mean_with_random_momentum() -> None:
    running, restored = running_energy(), running_energy()
    means = torch.tensor([-2.0, -1.0, -4.0, -3.0])
    torch.manual_seed(7)
    momenta = [torch.rand(()) for _ in means]
    expected = means[0]
    torch.manual_seed(7)
    for number, (momentum, mean) in enumerate(zip(momenta, means, strict=True)):
        restored.load_state_dict(running.state_dict())  # all state is in buffers
        state = torch.get_rng_state()
        running.update(mean)
        torch.set_rng_state(state)
        restored.update(mean)
        if number:
            expected = momentum * expected + (1 - momentum) * mean
        torch.testing.assert_close((running.delta, restored.delta), (expected, expected))


def test_losses_by_hand() -> None:
    model = TinyNetwork()
    losses = eada(model, image_batch(), running_energy(), align=0.5, source=2.0)
    source, target = model(SOURCE.images).z[:5], model(UNLABELLED_IMAGES).z  # the sixth has no label
    delta, energy = free_energy(source).mean().detach(), free_energy(target)
    assert (energy > delta).any()
    assert (energy < delta).any()
    expected = {
        "source/nll": 2 * F.cross_entropy(source, SOURCE.labels[:5]),
        "labelled/nll": F.cross_entropy(model(LABELLED.images).z, LABELLED.labels),
        "unlabelled/energy": 0.5 * (energy - delta).clamp(min=0).mean(),
    }
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-7)


def test_only_target_energies_have_a_gradient() -> None:
    model, source = TinyNetwork(), SOURCE._replace(images=SOURCE.images.clone().requires_grad_())
    unlabelled = UNLABELLED_IMAGES.clone().requires_grad_()
    loss = eada(model, Batch(source, None, unlabelled), running_energy())["unlabelled/energy"]
    for_source, for_target = torch.autograd.grad(loss, (source.images, unlabelled), allow_unused=True)
    assert for_source is None
    assert for_target.abs().sum() > 0


def test_running_mean_without_unlabelled_target() -> None:
    model, used, unused = TinyNetwork(), running_energy(), running_energy()
    assert eada(model, Batch(SOURCE, None, None), used).keys() == {"source/nll"}
    assert eada(model, image_batch(), unused, align=0.0).keys() == {"source/nll", "labelled/nll"}
    assert (bool(used.is_initialised), bool(unused.is_initialised)) == (True, False)
