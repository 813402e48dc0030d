"""Adversarial objectives: the critic of WAAL and the discriminator separate, the features align."""

import pytest
import torch
from tiny_network import (
    LABELLED,
    SOURCE,
    UNLABELLED_IMAGES,
    TinyNetwork,
    assert_step_changes,
    auxiliary_context,
    image_batch,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.objectives import OBJECTIVES, Batch, softmax
from ducats.objectives.adversarial import adversarial
from ducats.objectives.auxiliary import features_of
from ducats.objectives.probes import Critic, Discriminator
from ducats.objectives.waal import waal


def make_waal() -> tuple[TinyNetwork, Critic]:
    model = TinyNetwork()
    torch.manual_seed(3)
    return model, Critic(auxiliary_context(model), hidden=8, dropout=0.0).double()


def features(model: TinyNetwork, images: Tensor) -> Tensor:
    return features_of(model(images))


def gap(model: TinyNetwork, critic: Critic) -> Tensor:
    """``mean g(U) - gamma mean g(L)``, computed directly."""
    labelled = torch.cat([SOURCE.images[:5], LABELLED.images])  # the sixth has no label
    labelled_scores, unlabelled_scores = (
        critic(features(model, images)) for images in (labelled, UNLABELLED_IMAGES)
    )
    gamma = len(labelled_scores) / len(unlabelled_scores)
    found: Tensor = unlabelled_scores.mean() - gamma * labelled_scores.mean()
    return found


def test_values_by_hand() -> None:
    model, critic = make_waal()
    torch.manual_seed(1)
    losses = waal(model, image_batch(), critic)
    labelled = torch.cat([features(model, images) for images in (SOURCE.images, LABELLED.images)])
    torch.manual_seed(1)
    penalty = critic.gradient_penalty(features(model, UNLABELLED_IMAGES), labelled)
    expected = {"critic/distance": -gap(model, critic), "critic/penalty": 2 * penalty}
    torch.testing.assert_close(losses, softmax(model, image_batch()) | expected)
    assert waal(model, Batch(SOURCE, None, None), critic).keys() == {"source/nll"}


def test_critic_widens_and_features_narrow_the_gap() -> None:
    model, critic = make_waal()
    waal(model, image_batch(), critic, weight=0.5)["critic/distance"].backward()
    assert_step_changes(critic, lambda: gap(model, critic), 1)
    assert_step_changes(model.body, lambda: gap(model, critic), -1)
    assert all(p.grad is None for p in model.head.parameters())


@pytest.mark.parametrize(
    ("name", "param", "loss"),
    [("waal", "weight", "critic/distance"), ("adversarial", "domain", "domain/nll")],
)
def test_weight_scales_only_the_gradient_of_the_features(name: str, param: str, loss: str) -> None:
    found = []
    for weight in (1.0, 0.25):
        model, spec = TinyNetwork(), OBJECTIVES[name].bind({param: weight})
        assert spec.auxiliary is not None
        torch.manual_seed(0)
        auxiliary = spec.auxiliary(auxiliary_context(model)).double().eval()
        losses = spec.bind_auxiliary(auxiliary)(model, image_batch())
        found.append(torch.autograd.grad(losses[loss], [model.body.weight, *auxiliary.parameters()]))
    (first, *same), (second, *others) = found
    assert first.abs().sum() > 0
    torch.testing.assert_close(first, 4 * second)
    torch.testing.assert_close(same, others)


def test_penalty_trains_only_the_critic_towards_unit_gradient() -> None:
    model, critic = make_waal()
    waal(model, image_batch(), critic)["critic/penalty"].backward()
    assert all(p.grad is None for p in model.parameters())
    unlabelled, labelled = features(model, UNLABELLED_IMAGES), features(model, SOURCE.images)
    optimiser = torch.optim.SGD(critic.parameters(), lr=0.5)
    penalties = []
    for _ in range(50):
        optimiser.zero_grad()
        penalties.append(critic.gradient_penalty(unlabelled, labelled))
        penalties[-1].backward()
        optimiser.step()
    assert 0 < float(penalties[-1].detach()) < float(penalties[0].detach()) / 2


def test_adversarial_losses_by_hand() -> None:
    model = TinyNetwork()
    torch.manual_seed(3)
    discriminator = Discriminator(auxiliary_context(model), hidden=8).double()
    source, target = (discriminator(features(model, i)) for i in (SOURCE.images, UNLABELLED_IMAGES))
    p = model(UNLABELLED_IMAGES).z.softmax(1)
    expected = {
        "domain/nll": -(F.logsigmoid(source).mean() + F.logsigmoid(-target).mean()) / 2,
        "unlabelled/entropy": -0.3 * (p * p.log()).sum(1).mean(),
    }
    losses = adversarial(model, image_batch(), discriminator, domain=1.0, entropy=0.3)
    torch.testing.assert_close(losses, softmax(model, image_batch()) | expected)
    losses["domain/nll"].backward()

    def domain_loss() -> Tensor:
        return discriminator.loss(features(model, SOURCE.images), features(model, UNLABELLED_IMAGES))

    assert_step_changes(discriminator, domain_loss, -1)
    assert_step_changes(model.body, domain_loss, 1)
    assert adversarial(model, Batch(SOURCE, None, None), discriminator).keys() == {"source/nll"}
