"""Objective of WAAL: the critic separates labelled and unlabelled data, the features align them."""

import torch
import torch.nn.functional as F
from tiny_network import TinyNetwork, auxiliary_context, image_batch

from ducats.objectives.batch import Batch
from ducats.objectives.probes import Critic
from ducats.objectives.waal import waal


def make_waal(penalty: float = 2.0) -> tuple[TinyNetwork, Critic, Batch]:
    model = TinyNetwork()
    model.float()
    batch = image_batch()
    assert batch.labelled is not None
    assert batch.unlabelled is not None
    batch = Batch(
        batch.source._replace(images=batch.source.images.float()),
        batch.labelled._replace(images=batch.labelled.images.float()),
        batch.unlabelled.float(),
    )
    torch.manual_seed(3)
    return model, Critic(auxiliary_context(model), hidden=8, dropout=0.0, penalty=penalty), batch


def gap(model: TinyNetwork, critic: Critic, batch: Batch) -> float:
    """``mean g(U) - gamma mean g(L)``, computed directly."""
    assert batch.labelled is not None
    assert batch.unlabelled is not None
    labelled = torch.cat([batch.source.images[:5], batch.labelled.images])  # the sixth has no label
    with torch.no_grad():
        labelled_scores = critic(model(labelled).features)
        unlabelled_scores = critic(model(batch.unlabelled).features)
    gamma = len(labelled_scores) / len(unlabelled_scores)
    return float(unlabelled_scores.mean() - gamma * labelled_scores.mean())


def test_values_by_hand() -> None:
    model, critic, batch = make_waal()
    losses = waal(model, batch, critic)
    torch.testing.assert_close(losses["critic/distance"], torch.tensor(-gap(model, critic, batch)))
    z = model(batch.source.images).z[:5]
    torch.testing.assert_close(losses["source/nll"], F.cross_entropy(z, batch.source.labels[:5]))
    assert losses.keys() == {"source/nll", "labelled/nll", "critic/distance", "critic/penalty"}
    assert waal(model, Batch(batch.source, None, None), critic).keys() == {"source/nll"}


def test_critic_widens_and_features_narrow_the_gap() -> None:
    model, critic, batch = make_waal()
    before = gap(model, critic, batch)
    waal(model, batch, critic, weight=0.5)["critic/distance"].backward()
    for part, sign in ((critic, 1), (model.body, -1)):
        start = [p.detach().clone() for p in part.parameters()]
        with torch.no_grad():
            for p in part.parameters():
                assert p.grad is not None
                p.sub_(0.1 * p.grad)
        assert sign * (gap(model, critic, batch) - before) > 1e-6
        with torch.no_grad():
            for p, value in zip(part.parameters(), start, strict=True):
                p.copy_(value)
    assert all(p.grad is None for p in model.head.parameters())


def test_weight_scales_only_the_gradient_of_the_features() -> None:
    grads = []
    for weight in (1.0, 0.25):
        model, critic, batch = make_waal()
        waal(model, batch, critic, weight=weight)["critic/distance"].backward()
        assert model.body.weight.grad is not None
        first = next(critic.parameters()).grad
        assert first is not None
        grads.append((model.body.weight.grad, first))
    torch.testing.assert_close(grads[0][0], 4 * grads[1][0])
    torch.testing.assert_close(grads[0][1], grads[1][1])


def test_penalty_trains_only_the_critic_towards_unit_gradient() -> None:
    model, critic, batch = make_waal()
    torch.manual_seed(1)
    losses = waal(model, batch, critic)
    losses["critic/penalty"].backward()
    assert all(p.grad is None for p in model.parameters())
    assert batch.unlabelled is not None
    unlabelled, labelled = (model(images).features for images in (batch.unlabelled, batch.source.images))
    assert unlabelled is not None
    assert labelled is not None
    assert batch.labelled is not None
    labelled_target = model(batch.labelled.images).features
    assert labelled_target is not None
    torch.manual_seed(1)
    penalty = critic.gradient_penalty(unlabelled, torch.cat([labelled, labelled_target])).detach()
    assert penalty > 0
    torch.testing.assert_close(losses["critic/penalty"].detach(), 2 * penalty)  # added, not subtracted
    optimiser = torch.optim.SGD(critic.parameters(), lr=0.5)
    torch.manual_seed(0)
    first = float(critic.gradient_penalty(unlabelled, labelled).detach())
    for _ in range(100):
        optimiser.zero_grad()
        critic.gradient_penalty(unlabelled, labelled).backward()
        optimiser.step()
    assert float(critic.gradient_penalty(unlabelled, labelled).detach()) < first / 2
