"""Probes: critic, committee and discriminator; the objective of TQS, which trains two of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as TF
from PIL import Image
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import v2

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
from ducats.objectives.probes.member_views import MEMBER_VIEWS, apply_member_view, sample_member_view
from ducats.objectives.tqs import TqsProbes, tqs


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


def with_stored(batch: Batch) -> Batch:
    """Return the batch with stored images, as if the view changed nothing."""

    def store(stream: LabelledImages | None) -> Tensor | None:
        return None if stream is None else (255 * stream.images).round().byte()

    return replace(batch, stored_source=store(batch.source), stored_labelled=store(batch.labelled))


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


# The published views of TQS's five members: ranges of rotation, translation, scale and shear; probability of
# a perspective, which moves corners by up to half of half the side; corner of FiveCrop; jitter; greyscale.
PUBLISHED_VIEWS = (
    (30, 0.1, (0.9, 1.1), 0.2, 0, 4, 0, 0.1),
    (0, 0, (1, 1), 0, 0.5, 0, 0.2, 0),
    (30, 0.1, (0.9, 1.1), 0.2, 0, 1, 0.2, 0),
    (10, 0.1, (0.9, 1.1), 0.1, 0.5, 2, 0, 0),
    (0, 0, (1, 1), 0, 0.5, 3, 0, 0.1),
)


@pytest.mark.parametrize("member", range(5))
def test_ranges_of_the_views_are_the_published_ones(member: int) -> None:
    count, height, width = 4000, 60, 40
    degrees, translate, scale, shear, perspective, _, jitter, grey = PUBLISHED_VIEWS[member]
    torch.manual_seed(member)
    sampled = sample_member_view(MEMBER_VIEWS[member], count, height, width)

    def assert_range(values: Tensor, low: float, high: float) -> None:
        assert low - 1e-5 <= values.min() <= low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) <= values.max() <= high + 1e-5

    assert_range(sampled.angle, -degrees, degrees)
    assert_range(sampled.translate[:, 0], -translate * width, translate * width)
    assert_range(sampled.translate[:, 1], -translate * height, translate * height)
    assert_range(sampled.scale, *scale)
    assert_range(sampled.shear, -shear, shear)
    factors, hue = sampled.jitter[:, 5:8], sampled.jitter[:, 8]
    assert_range(factors, 1 - jitter, 1 + jitter)
    assert_range(hue, -jitter, jitter)
    assert torch.equal(sampled.jitter[:, 9:13].sort(1).values, torch.arange(4.0).expand(count, 4))
    assert abs(sampled.is_grey.float().mean() - grey) < 0.03
    assert abs(sampled.is_flipped.float().mean() - 0.5) < 0.03
    corners = torch.tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    moves = (sampled.corners - corners).abs()
    has_perspective = moves.flatten(1).any(1)
    assert abs(has_perspective.float().mean() - perspective) < 0.03
    if perspective:
        assert moves[has_perspective].amin((0, 1)).tolist() == [0, 0]
        assert moves.amax((0, 1)).tolist() == [10, 15]


def pil_warp(warp: Callable[..., Any], image: Tensor, *args: Any) -> Tensor:
    """Apply a function of torchvision to each channel as a PIL image of floats, which are not rounded."""
    bicubic = {"interpolation": v2.InterpolationMode.BICUBIC, "fill": 1.0}
    channels = [warp(Image.fromarray(channel.numpy()), *args, **bicubic) for channel in image]
    return torch.stack([torch.tensor(np.array(channel)) for channel in channels]).clamp(0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("member", range(5))
def test_each_member_sees_the_published_view(member: int, channels: int) -> None:
    """Compare with torchvision's functions on PIL images, given the same sampled parameters."""
    *_, perspective, corner, jitter, _ = PUBLISHED_VIEWS[member]
    height, width, size = 40, 48, (33, 37)
    images = torch.rand(12, channels, height, width, generator=torch.Generator().manual_seed(member))
    torch.manual_seed(member)
    sampled = sample_member_view(MEMBER_VIEWS[member], 12, height, width)
    found = apply_member_view(images, MEMBER_VIEWS[member], sampled, size)
    start, is_white = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], 0.0
    for i, image in enumerate(images):
        expected = TF.horizontal_flip(image) if sampled.is_flipped[i] else image
        if member in (0, 2, 3):
            shear, translate = [float(sampled.shear[i]), 0.0], sampled.translate[i].tolist()
            expected = pil_warp(
                TF.affine, expected, float(sampled.angle[i]), translate, float(sampled.scale[i]), shear
            )
        if perspective and sampled.corners[i].tolist() != start:
            expected = pil_warp(TF.perspective, expected, start, sampled.corners[i].tolist())
        expected = TF.five_crop(expected, list(size))[corner]
        is_white += float((expected == 1).all(0).float().mean()) / 12
        if jitter:
            brightness, contrast, saturation, hue = sampled.jitter[i, 5:9].tolist()
            for kind in sampled.jitter[i, 9:13].tolist():
                expected = (
                    TF.adjust_brightness(expected, brightness),
                    TF.adjust_contrast(expected, contrast),
                    TF.adjust_saturation(expected, saturation),
                    TF.adjust_hue(expected, hue),
                )[int(kind)]
        if sampled.is_grey[i]:
            expected = TF.rgb_to_grayscale(expected, channels)
        # A pixel exactly on the border may be inside or outside; it changes the mean that contrast uses.
        assert ((found[i] - expected).abs().amax(0) > 5e-4).float().mean() < 0.01
    assert is_white > 0.02  # outside the image


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("first_member", [0, 3])
def test_augmented_images_keep_their_order(channels: int, first_member: int) -> None:
    levels = torch.arange(11) * 20 + 10
    stored = levels.byte()[:, None, None, None].repeat(1, channels, 12, 10)

    def augment(seed: int, size: tuple[int, int] = (9, 9)) -> Tensor:
        torch.manual_seed(seed)
        return augment_per_member(stored, size, first_member)

    found = augment(1)
    assert torch.equal(found, augment(1))
    assert not torch.equal(found, augment(2))
    assert found.shape == (11, channels, 9, 9)
    assert augment(1, (16, 8)).shape == (11, channels, 16, 8)  # larger than the stored images
    # A uniform image keeps its colour, except white borders, for members with one warp and no jitter.
    for i in range(11):
        if (first_member + i) % 5 in (0, 4):
            values = found[i][found[i] < 1]
            torch.testing.assert_close(values, (levels[i] / 255).expand_as(values))
    # Images of one member differ in their parameters.
    same = stored[:1].repeat(40, 1, 1, 1)
    assert len(augment_per_member(same, (9, 9))[0::5].unique(dim=0)) > 5


@pytest.mark.parametrize("side", [1, 2, 3, 5, 16])
def test_augmented_images_are_finite(side: int) -> None:
    torch.manual_seed(0)
    stored = torch.randint(256, (200, 1, side, side), dtype=torch.uint8)
    augmented = augment_per_member(stored, (side, side))
    assert bool(((augmented >= 0) & (augmented <= 1)).all())


def test_augmentation_reads_no_value_from_the_device() -> None:
    """Reading one would stop a CUDA graph; tensors without values raise instead."""
    with FakeTensorMode():
        stored = torch.zeros(7, 3, 12, 10, dtype=torch.uint8)
        assert augment_per_member(stored, (9, 9)).shape == (7, 3, 9, 9)


def test_committee_learns_from_labelled_images() -> None:
    members = committee(classes=2)
    batch = Batch(
        LabelledImages(torch.cat([images(0.1, 10), images(0.9, 10)]), torch.tensor([0] * 10 + [1] * 10)),
        LabelledImages(images(0.9, 5, seed=3), torch.ones(5).long()),
        None,
    )
    model = train(members, with_stored(batch), lr=0.5, steps=60)
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
    batch = with_stored(Batch(source, LabelledImages(images(0.0, 10, seed=1), labels), unlabelled))
    probes = TqsProbes(context(3))
    losses = tqs(CachedForward(model), batch, probes, source=0.5)
    expected = softmax(model, batch, source=0.5)
    assert losses.keys() == expected.keys() | {"probe/committee", "probe/domain"}
    assert all(torch.equal(losses[name], value) for name, value in expected.items())
    output = train(probes, batch, lr=0.3, steps=60)(torch.cat([source.images, unlabelled]))
    domain = probes.extra_columns(output)["domain"]
    assert domain[:10].mean() > domain[10:].mean() + 0.3
    assert set(probes.provides) == probes.extra_columns(output).keys() == {"committee", "domain"}
    without = tqs(CachedForward(model), with_stored(Batch(source, None, None)), probes)
    assert without.keys() == {"source/nll", "probe/committee"}
