"""Probes: critic, committee and discriminator; the objective of TQS, which trains two of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives import (
    PROBES,
    AuxiliaryContext,
    AuxiliaryModule,
    Batch,
    CachedForward,
    LabelledImages,
    softmax,
)
from ducats.objectives.probes import Committee, Critic, Discriminator
from ducats.objectives.probes.committee import augment_per_member
from ducats.objectives.tqs import TqsProbes, tqs
from ducats.utils.randomness import global_seed


class MeanColourModel(nn.Module):
    """Returns a linear function of the channel means as features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, images: Tensor) -> Output:
        features = self.layer(images.mean((2, 3)))
        return Output(features, features)


def context(classes: int = 2, *, per_pixel: bool = False) -> AuxiliaryContext:
    return AuxiliaryContext(MeanColourModel(), classes, 3, 1, per_pixel=per_pixel)


def images(level: float, count: int, seed: int = 0) -> Tensor:
    noise = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return level + 0.1 * noise


def train(probe: AuxiliaryModule, batch: Batch, *, lr: float, steps: int) -> MeanColourModel:
    """Train a probe on the outputs of a model, which must get no gradient."""
    model = MeanColourModel().train()
    optimiser = torch.optim.SGD(probe.parameters(), lr=lr)
    for _ in range(steps):
        losses = probe.losses(CachedForward(model), batch)
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
    assert all(p.grad is None for p in model.parameters())
    return model.eval()


# ---- critic


def gradient_norm(critic: Critic, row: Tensor) -> float:
    """Gradient norm of ``sigmoid(b + w relu(a + V x))``, by its formula."""
    v, a, w, b = critic.parameters()
    inner = v @ row + a
    score = torch.sigmoid(w[0] @ inner.clamp(min=0) + b[0])
    return float((score * (1 - score) * ((w[0] * (inner > 0)) @ v)).norm())


def test_the_penalty_by_hand() -> None:
    torch.manual_seed(0)
    critic = Critic(context(), hidden=6).eval()
    generator = torch.Generator().manual_seed(1)
    some, others = torch.randn(4, 3, generator=generator), torch.randn(2, 3, generator=generator)
    torch.manual_seed(5)
    found = critic.gradient_penalty(some, others)
    torch.manual_seed(5)
    weight = torch.rand(4, 1)
    between = weight * some + (1 - weight) * others[[0, 1, 0, 1]]
    with torch.no_grad():
        norms = torch.tensor([gradient_norm(critic, row) for row in (*between, *some, *others)])
    torch.testing.assert_close(found.detach(), ((norms - 1) ** 2).mean())


def test_a_constant_critic_has_a_finite_gradient() -> None:
    critic = Critic(context(), hidden=4)
    weight, bias, *_ = critic.parameters()
    nn.init.zeros_(weight)
    nn.init.constant_(bias, -1.0)
    penalty = critic.gradient_penalty(torch.zeros(2, 3), torch.zeros(3, 3))
    assert float(penalty.detach()) == 1.0
    penalty.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in critic.parameters())


def test_critic_learns_without_affecting_the_model() -> None:
    torch.manual_seed(0)
    labelled, unlabelled = images(0.0, 8), images(3.0, 8, seed=1)
    critic, zeros = Critic(context()), torch.zeros(4).long()
    source = LabelledImages(labelled[:4], zeros)
    batch = Batch(source, LabelledImages(labelled[4:], zeros), unlabelled)
    model = train(critic, batch, lr=0.1, steps=150)
    assert critic.losses(CachedForward(model), batch).keys() == {"probe/distance", "probe/penalty"}
    critic.eval()
    labelled_scores, unlabelled_scores = (
        critic.extra_columns(model(some))["critic"] for some in (labelled, unlabelled)
    )
    assert labelled_scores.shape == (8,)
    assert labelled_scores.max() + 0.3 < unlabelled_scores.min()
    assert critic.losses(CachedForward(model), Batch(source, None, None)) == {}


def test_critic_on_maps_scores_each_position() -> None:
    critic = Critic(context(per_pixel=True)).eval()
    features = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    columns = critic.extra_columns(Output(features, features, (8, 10)))["critic"]
    assert columns.shape == (2, 4, 5)
    torch.testing.assert_close(columns[1, 2, 3], critic(features[1, :, 2, 3][None])[0])


def test_a_discriminator_may_be_linear() -> None:
    assert [tuple(p.shape) for p in Discriminator(context(), hidden=0).parameters()] == [(1, 3), (1,)]


# ---- committee


def committee(classes: int = 4) -> Committee:
    torch.manual_seed(0)
    return Committee(context(classes))


def test_members_learn_from_their_own_images() -> None:
    members = committee()
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, -2, -1])
    expected = []
    for number, member in enumerate(members.members):
        own = [i for i in range(12) if i % 5 == number and labels[i] >= 0]
        expected.append(F.cross_entropy(member(features[own]), labels[own]))
    torch.testing.assert_close(members.loss(features, labels), torch.stack(expected).sum())
    # Fewer images than members: the others get no gradient.
    weights = [p for p in members.parameters() if p.ndim == 2]
    gradients = torch.autograd.grad(members.loss(features[:2], labels[:2]), weights)
    assert [bool(gradient.any()) for gradient in gradients] == [True, True, False, False, False]


def test_members_start_differently_and_return_probabilities() -> None:
    columns = committee().extra_columns(MeanColourModel()(images(0.5, 7)))["committee"]
    assert columns.shape == (7, 5, 4)
    torch.testing.assert_close(columns.sum(2), torch.ones(7, 5))
    assert len(columns.unique(dim=1)[0]) == 5


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_augmented_images_keep_their_order(channels: int) -> None:
    augmented = torch.rand(11, channels, 9, 9, generator=torch.Generator().manual_seed(0))

    def with_seed(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return augment_per_member(augmented)

    found = with_seed(1)
    assert torch.equal(found, with_seed(1))
    assert not torch.equal(found, with_seed(2))
    assert found.shape == augmented.shape
    assert found.min() >= 0
    assert found.max() <= 1
    # A uniform image keeps its colour where no border is visible, regardless of the other images.
    level = (torch.arange(11) + 4) / 20
    plain = augment_per_member(level[:, None, None, None].expand(11, channels, 9, 9).contiguous())
    torch.testing.assert_close(plain[3::5].amax((1, 2, 3)), level[3::5])


def test_degenerate_perspective_leaves_the_image_unchanged() -> None:
    images = torch.rand(45, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with global_seed(1, "network", 6, 0):  # the 28th draw of this seed is degenerate
        augmented = [augment_per_member(images) for _ in range(30)]
    assert all(bool(some.isfinite().all()) for some in augmented)


def test_committee_learns_from_labelled_images() -> None:
    members = committee(classes=2)
    batch = Batch(
        LabelledImages(torch.cat([images(0.1, 10), images(0.9, 10)]), torch.tensor([0] * 10 + [1] * 10)),
        LabelledImages(images(0.9, 5, seed=3), torch.ones(5).long()),
        None,
    )
    model = train(members, batch, lr=0.5, steps=60)
    columns = members.extra_columns(model(images(0.9, 4, seed=9)))["committee"]
    assert columns[:, :, 1].min() > 0.6


# ---- all probes, and TQS


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_provides_its_column(name: str) -> None:
    probe = PROBES[name](context(4)).eval()
    assert probe.provides == (name,)
    columns = probe.extra_columns(MeanColourModel()(images(0.5, 2)))
    assert {column: len(values) for column, values in columns.items()} == {name: 2}


def test_tqs_is_softmax_and_trains_its_probes() -> None:
    torch.manual_seed(0)
    model, labels = MeanColourModel(), torch.arange(10) % 2
    source, unlabelled = LabelledImages(images(0.0, 10), labels), images(1.0, 10)
    batch = Batch(source, LabelledImages(images(0.0, 10, seed=1), labels), unlabelled)
    probes = TqsProbes(context(3))
    losses = tqs(CachedForward(model), batch, probes, source=0.5)
    expected = softmax(model, batch, source=0.5)
    assert losses.keys() == expected.keys() | {"probe/committee", "probe/domain"}
    assert all(torch.equal(losses[name], value) for name, value in expected.items())
    output = train(probes, batch, lr=0.3, steps=60)(torch.cat([source.images, unlabelled]))
    domain = probes.extra_columns(output)["domain"]
    assert domain[:10].mean() > domain[10:].mean() + 0.3
    assert set(probes.provides) == probes.extra_columns(output).keys() == {"committee", "domain"}
    without = tqs(CachedForward(model), Batch(source, None, None), probes)
    assert without.keys() == {"source/nll", "probe/committee"}
