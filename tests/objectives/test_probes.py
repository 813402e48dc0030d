"""Probes: critic, committee and discriminator."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives import PROBES, AuxiliaryContext, Batch, CachedForward, LabelledImages
from ducats.objectives.probes import Committee, Critic, Discriminator
from ducats.objectives.probes.committee import augment_per_member
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed


class MeanColourModel(nn.Module):
    """Returns channel means as features and logits."""

    def forward(self, images: Tensor) -> Output:
        features = images.mean((2, 3))
        return Output(features, features)


def images(level: float, count: int, seed: int = 0) -> Tensor:
    noise = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return level + 0.1 * noise


def gradient_norm(critic: Critic, row: Tensor) -> float:
    """Gradient norm of ``sigmoid(b + w relu(a + V x))``, by its formula."""
    v, a, w, b = critic.parameters()
    inner = v @ row + a
    score = torch.sigmoid(w[0] @ inner.clamp(min=0) + b[0])
    return float((score * (1 - score) * ((w[0] * (inner > 0)) @ v)).norm())


def test_the_penalty_by_hand() -> None:
    torch.manual_seed(0)
    critic = Critic(AuxiliaryContext(nn.Identity(), 2, 3, 1, per_pixel=False), hidden=6).eval()
    generator = torch.Generator().manual_seed(1)
    some, others = torch.randn(4, 3, generator=generator), torch.randn(2, 3, generator=generator)
    torch.manual_seed(5)
    found = critic.gradient_penalty(some, others)
    torch.manual_seed(5)
    weight = torch.rand(4, 1)
    between = weight * some + (1 - weight) * others[[0, 1, 0, 1]]
    with torch.no_grad():
        gradient_norms = [gradient_norm(critic, row) for row in (*between, *some, *others)]
    assert float(found.detach()) == pytest.approx(
        sum((s - 1) ** 2 for s in gradient_norms) / len(gradient_norms), rel=1e-5
    )


def test_a_constant_critic_has_a_finite_gradient() -> None:
    critic = Critic(AuxiliaryContext(nn.Identity(), 2, 3, 1, per_pixel=False), hidden=4)
    weight, bias, *_ = critic.parameters()
    nn.init.zeros_(weight)
    nn.init.constant_(bias, -1.0)
    penalty = critic.gradient_penalty(torch.zeros(2, 3), torch.zeros(3, 3))
    assert float(penalty.detach()) == 1.0
    penalty.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in critic.parameters())


def test_critic_learns_without_affecting_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, images: Tensor) -> Output:
            features = self.inner(images.mean((2, 3)))
            return Output(features, features)

    net, labelled, unlabelled = Net(), images(0.0, 8), images(3.0, 8, seed=1)
    critic = Critic(AuxiliaryContext(net, 2, 3, 8, per_pixel=False))
    batch = Batch(
        LabelledImages(labelled[:4], torch.zeros(4).long()),
        LabelledImages(labelled[4:], torch.zeros(4).long()),
        unlabelled,
    )
    optimiser = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(150):
        losses = critic.losses(CachedForward(net), batch)
        assert losses.keys() == {"probe/distance", "probe/penalty"}
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
    assert all(p.grad is None for p in net.parameters())
    critic.eval()
    with torch.no_grad():
        labelled_scores, unlabelled_scores = (
            critic.extra_columns(net(some))["critic"] for some in (labelled, unlabelled)
        )
    assert labelled_scores.shape == (8,)
    assert labelled_scores.max() + 0.3 < unlabelled_scores.min()
    assert critic.losses(CachedForward(net), Batch(batch.source, None, None)) == {}


def test_critic_on_maps_scores_each_position() -> None:
    critic = Critic(AuxiliaryContext(nn.Identity(), 2, 3, 1, per_pixel=True)).eval()
    features = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    columns = critic.extra_columns(Output(features, features, (8, 10)))["critic"]
    assert columns.shape == (2, 4, 5)
    torch.testing.assert_close(columns[1, 2, 3], critic(features[1, :, 2, 3][None])[0])


def test_a_discriminator_may_be_linear() -> None:
    flat = Discriminator(AuxiliaryContext(nn.Identity(), 2, 3, 1, per_pixel=False), hidden=0)
    assert [tuple(p.shape) for p in flat.parameters()] == [(1, 3), (1,)]


def committee(classes: int = 4) -> Committee:
    torch.manual_seed(0)
    return Committee(AuxiliaryContext(MeanColourModel(), classes, 3, 1, per_pixel=False))


def test_members_learn_from_their_own_images() -> None:
    members = committee()
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, -2, -1])
    expected = []
    for number, member in enumerate(members.members):
        assert isinstance(member, nn.Linear)
        own = [i for i in range(12) if i % 5 == number and labels[i] >= 0]
        expected.append(F.cross_entropy(member(features[own]), labels[own]))
    torch.testing.assert_close(members.loss(features, labels), torch.stack(expected).sum())
    # Fewer images than members: the others get no gradient.
    few = members.loss(features[:2], labels[:2])
    few.backward()
    grads = [p.grad for p in members.parameters() if p.ndim == 2]
    assert [bool(g is not None and g.abs().sum() > 0) for g in grads] == [True, True, False, False, False]


def test_members_start_differently_and_return_probabilities() -> None:
    members, output = committee(), MeanColourModel()(images(0.5, 7))
    columns = members.extra_columns(output)["committee"]
    assert columns.shape == (7, 5, 4)
    torch.testing.assert_close(columns.sum(2), torch.ones(7, 5))
    assert all(not torch.equal(columns[:, i], columns[:, j]) for i in range(5) for j in range(i))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_augmented_images_keep_their_order(channels: int) -> None:
    augmented = torch.rand(11, channels, 9, 9, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    found = augment_per_member(augmented)
    torch.manual_seed(1)
    assert torch.equal(found, augment_per_member(augmented))
    torch.manual_seed(2)
    assert not torch.equal(found, augment_per_member(augmented))
    assert found.shape == augmented.shape
    assert found.min() >= 0
    assert found.max() <= 1
    # A uniform image keeps its colour where no border is visible, regardless of the other images.
    level = (torch.arange(11) + 4) / 20
    plain = augment_per_member(level[:, None, None, None].expand(11, channels, 9, 9).contiguous())
    torch.testing.assert_close(plain[3::5].amax((1, 2, 3)), level[3::5])


def test_committee_learns_from_labelled_images_without_affecting_the_model() -> None:
    members, model = committee(classes=2), MeanColourModel().train()
    batch = Batch(
        LabelledImages(torch.cat([images(0.1, 10), images(0.9, 10)]), torch.tensor([0] * 10 + [1] * 10)),
        LabelledImages(images(0.9, 5, seed=3), torch.ones(5).long()),
        None,
    )
    optimiser = torch.optim.SGD(members.parameters(), lr=0.5)
    torch.manual_seed(0)
    for _ in range(100):
        loss = members.losses(CachedForward(model), batch)["probe/committee"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    columns = members.extra_columns(model(images(0.9, 4, seed=9)))["committee"]
    assert columns[:, :, 1].min() > 0.6


def test_every_probe_provides_its_column() -> None:
    with pytest.raises(UserError, match="whole images only"):
        Committee(AuxiliaryContext(MeanColourModel(), 2, 3, 1, per_pixel=True))
    for name, make in PROBES.items():
        probe = make(AuxiliaryContext(MeanColourModel(), 4, 3, 1, per_pixel=False)).eval()
        assert probe.provides == (name,)
        columns = probe.extra_columns(MeanColourModel()(images(0.5, 2)))
        assert columns.keys() == {name}
        assert len(columns[name]) == 2


def test_degenerate_perspective_leaves_the_image_unchanged() -> None:
    images = torch.rand(45, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with global_seed(1, "network", 6, 0):  # the 28th draw of this seed is degenerate
        augmented = [augment_per_member(images) for _ in range(30)]
    assert all(bool(some.isfinite().all()) for some in augmented)
