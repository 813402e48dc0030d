"""Objective of MADA: descriptors, anchors and losses against plain loops."""

import torch
from tiny_maps import (
    CLASSES,
    TARGET,
    WIDTH,
    TinySegmenter,
    assert_losses,
    auxiliary_context,
    coarse_probability,
    due_epochs,
    gradients,
    map_batch,
    refresh,
)
from torch import Tensor

from ducats.acquisition.class_descriptors import class_descriptors, downsample_nearest, fit_anchors
from ducats.data.domain import UNLABELLED
from ducats.objectives.auxiliary import features_of
from ducats.objectives.mada import TargetAnchors, mada


def by_loops(z: Tensor, features: Tensor, counted: Tensor | None = None) -> Tensor:
    rows = []
    for n in range(len(z)):
        class_means = []
        for c in range(z.shape[1]):
            is_class = z[n].argmax(0) == c
            is_class = is_class if counted is None else is_class & counted[n]
            some = features[n][:, is_class]
            class_means.append(some.mean(1) if some.shape[1] >= 10 else torch.zeros(len(features[n])))
        rows.append(torch.cat(class_means))
    return torch.stack(rows)


def test_descriptors_are_class_means_of_enough_positions() -> None:
    generator = torch.Generator().manual_seed(0)
    z, features = torch.randn(3, 4, 6, 8, generator=generator), torch.randn(3, 5, 6, 8, generator=generator)
    z[:, 3] -= 2  # rare
    for image, count in enumerate((10, 9)):  # of class 2: just enough, and one too few
        z[image, 2] = -9.0
        z[image, 2].view(-1)[:count] = 9.0
    for some in (None, torch.rand(3, 6, 8, generator=generator) < 0.8):
        found = class_descriptors(z, features, some)
        torch.testing.assert_close(found, by_loops(z, features, some))
        assert (found[:, 15:] == 0).any()


def test_nearest_pixel_with_aligned_corners() -> None:
    values = torch.arange(7 * 10).view(7, 10)
    rows, columns = [0, 3, 6], [0, 2, 5, 7, 9]  # 9 * (0, 1/4, 1/2, 3/4, 1) = 0, 2.25, 4.5, 6.75, 9
    assert torch.equal(downsample_nearest(values, (3, 5)), values[rows][:, columns])
    assert torch.equal(downsample_nearest(values, (1, 1)), values[:1, :1])


def test_anchors_are_cluster_centres() -> None:
    centres = torch.tensor([[0.0, 0.0], [0.0, 10.0], [10.0, 0.0]])
    rows = (centres[:, None] + torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.3]])).flatten(0, 1)
    found = fit_anchors(rows, 3, seed=0)
    order = sorted(range(3), key=lambda i: found[i].tolist())
    torch.testing.assert_close(found[order], centres + torch.tensor([0.0, 0.1]))
    assert torch.equal(found, fit_anchors(rows, 3, seed=0))
    assert len(fit_anchors(rows[:1].repeat(5, 1), 3, seed=0)) == 1  # one image, repeated


def with_anchors(count: int = 3) -> tuple[TinySegmenter, TargetAnchors]:
    model = TinySegmenter()
    auxiliary = TargetAnchors(auxiliary_context(model), n_anchors=count)
    assert due_epochs(auxiliary) == [5]
    refresh(auxiliary, model, 5)
    return model, auxiliary


def test_stage_two_adds_pseudo_labels_and_anchors() -> None:
    model, auxiliary = with_anchors()
    centres = auxiliary.anchors.clone()
    losses = mada(model, map_batch(), auxiliary, pseudo=0.4, anchor=0.6, ema_rate=0.1)
    output = model(TARGET.images)
    descriptors = by_loops(output.z, features_of(output))
    errors = ((descriptors[:, None] - centres) ** 2).mean(2)
    anchor = 0.6 * (3 / (1 / errors).sum(1)).mean()
    # The current prediction on the network's grid, which is every other pixel or between two.
    is_open = downsample_nearest(TARGET.labels, (6, 8)) == UNLABELLED
    assert 0 < is_open.sum() < is_open.numel()
    pseudo = 0.4 * -coarse_probability(output.z).amax(1).log()[is_open].mean()
    assert_losses(losses, {"pseudo/nll": pseudo, "target/anchor": anchor})
    torch.testing.assert_close(gradients(losses["pseudo/nll"], model), gradients(pseudo, model))
    moved = centres.clone()
    for number, image in zip(errors.argmin(1).tolist(), descriptors.detach(), strict=True):
        moved[number] += 0.1 * (image - centres[number])
    torch.testing.assert_close(auxiliary.anchors, moved)


def test_anchor_gradients_are_weighted_by_the_area_of_the_class() -> None:
    """Against the published formula by hand: the gradient of the plain loss times 2 x the class's share."""
    generator = torch.Generator().manual_seed(0)
    height, width, areas = 10, 16, (130, 18, 12, 0)  # of 160 positions
    predicted = torch.repeat_interleave(torch.arange(4), torch.tensor(areas))
    z = torch.zeros(1, 4, height * width).scatter_(1, predicted[None, None], 5.0).view(1, 4, height, width)
    features = torch.randn(1, WIDTH, height, width, generator=generator)
    anchors = torch.randn(3, CLASSES * WIDTH, generator=generator)

    by_hand = features.clone().requires_grad_()
    errors = ((by_loops(z, by_hand) - anchors) ** 2).mean(1)
    plain_loss = 3 / (1 / errors).sum()
    (plain_gradient,) = torch.autograd.grad(plain_loss, by_hand)
    share = torch.tensor([2 * area / 160 for area in areas])[predicted].view(height, width)

    _, auxiliary = with_anchors()
    auxiliary.anchors.copy_(anchors)
    leaf = features.clone().requires_grad_()
    loss = auxiliary.pull_anchors(class_descriptors(z, leaf), ema_rate=0.001).mean()
    (gradient,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(loss, plain_loss)
    torch.testing.assert_close(gradient, plain_gradient * share)
    nearest = int(errors.argmin())
    expected = anchors.clone()
    expected[nearest] = 0.999 * anchors[nearest] + 0.001 * by_loops(z, features)[0]
    torch.testing.assert_close(auxiliary.anchors, expected)


def test_two_images_move_their_common_anchor() -> None:
    _, auxiliary = with_anchors(count=1)
    before = auxiliary.anchors.clone()
    descriptors = torch.randn(2, CLASSES * WIDTH, generator=torch.Generator().manual_seed(0))
    error = auxiliary.pull_anchors(descriptors, 0.1)
    torch.testing.assert_close(error, ((descriptors - before) ** 2).mean(1))
    torch.testing.assert_close(auxiliary.anchors, before + 0.1 * (descriptors - before).sum(0))


def test_before_stage_two_nothing_is_added_or_moved() -> None:
    model = TinySegmenter()
    auxiliary = TargetAnchors(auxiliary_context(model))
    losses = mada(model, map_batch(), auxiliary)
    assert losses["pseudo/nll"] == losses["target/anchor"] == 0
    assert (auxiliary.anchors == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients(losses["target/anchor"], model))


def test_a_small_pool_has_duplicate_anchors() -> None:
    _, auxiliary = with_anchors(count=10)
    assert len(auxiliary.anchors) == 10
    assert 1 <= len(auxiliary.anchors.unique(dim=0)) <= 6
