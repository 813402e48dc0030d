"""TPLD: voting against plain loops, phases and losses against full-resolution maps."""

import pytest
import torch
from tiny_maps import (
    CLASSES,
    Pool,
    TinySegmenter,
    at_epoch,
    auxiliary_context,
    gradients,
    map_batch,
    perturb,
    random_images,
    upsample,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.data.domain import UNLABELLED
from ducats.objectives import AuxiliaryContext
from ducats.objectives.self_training.tpld import DensifyingTeacher, mean_confidence, neighbour_votes, tpld
from ducats.utils.errors import UserError


def neighbour_votes_by_loops(p: Tensor, threshold: Tensor, radius: int) -> Tensor:
    """Reference implementation, one position at a time."""
    found = torch.zeros_like(p)
    images, _, height, width = p.shape
    passes = (p / threshold[:, None, None] >= 1).any(1)
    for n in range(images):
        for y in range(height):
            for x in range(width):
                if passes[n, y, x]:
                    found[n, :, y, x] = p[n, :, y, x] / threshold
                    continue
                near = [
                    p[n, :, v, u]
                    for v in range(max(0, y - radius), min(height, y + radius + 1))
                    for u in range(max(0, x - radius), min(width, x + radius + 1))
                    if passes[n, v, u]
                ]
                for c in p[n, :, y, x].topk(2).indices if near else []:
                    mean = torch.stack(near).mean(0)[c]
                    found[n, c, y, x] = (p[n, c, y, x] + mean) / 2 / threshold[c]
    return found


@pytest.mark.parametrize("radius", [0, 1, 3])
def test_votes_match_plain_loops(radius: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rough = 4 * torch.randn(2, CLASSES, 3, 3, generator=generator)  # similar neighbours
    p = F.interpolate(rough, (6, 9), mode="bilinear").softmax(1)
    threshold = torch.tensor([0.7, 0.6, 0.65, torch.inf])
    found = neighbour_votes(p, threshold, radius)
    torch.testing.assert_close(found, neighbour_votes_by_loops(p, threshold, radius))
    passing = (p / threshold[:, None, None]).amax(1) >= 1
    dense = found.amax(1) >= 1
    assert (dense | ~passing).all()
    assert (dense.sum() > passing.sum()) == (radius == 1)  # distant neighbours belong to other classes


def test_a_vote_by_hand() -> None:
    p = torch.tensor([[[[0.9, 0.6, 0.5]], [[0.1, 0.4, 0.5]]]])  # 2 classes, a row of three
    score = neighbour_votes(p, torch.tensor([0.7, 0.7]), 1)
    # No passing neighbour for the third.
    expected = torch.tensor([[[[0.9, 0.75, 0.0]], [[0.1, 0.25, 0.0]]]]) / 0.7
    torch.testing.assert_close(score, expected)


def densifying_teacher(epoch: int) -> tuple[TinySegmenter, DensifyingTeacher]:
    torch.manual_seed(0)
    model = TinySegmenter()
    teacher = DensifyingTeacher(
        auxiliary_context(model), warmup=0.4, rounds=3, portion=0.3, easy_fraction=0.5, hidden=4
    )
    teacher.refresh(at_epoch(epoch), Pool(model, random_images(5, 6)))
    perturb(model)
    return model, teacher


def test_phase_two_is_the_second_half_and_half_the_pool_is_easy() -> None:
    assert [densifying_teacher(epoch)[1].phase.item() for epoch in (4, 6, 8)] == [1, 1, 2]
    _, teacher = densifying_teacher(8)
    confidence = mean_confidence(TinySegmenter()(random_images(5, 6)).z.clamp(max=10))
    assert (confidence >= teacher.min_easy_confidence).sum() == 3
    expected = TinySegmenter()(random_images(5, 6)).z.clamp(max=10).softmax(1).amax(1).flatten(1).mean(1)
    torch.testing.assert_close(confidence, expected)


def bootstrapped(p: Tensor, predicted: Tensor, beta: float) -> Tensor:
    own = F.nll_loss(p.log(), p.argmax(1), reduction="none")
    return beta * F.nll_loss(p.log(), predicted, reduction="none") + (1 - beta) * own


def test_phase_one_learns_from_voted_labels() -> None:
    model, teacher = densifying_teacher(4)
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
    losses = tpld(model, batch, teacher, beta=0.6, reg=0.2, radius=1)
    q = teacher.frozen_model(images).z.clamp(max=10).softmax(1)
    score, predicted = upsample(
        neighbour_votes_by_loops(q, teacher.log_threshold.exp(), 1), apply_evidence=False
    ).max(1)
    kept = (labels == UNLABELLED) & (score >= 1)
    assert 0 < kept.sum() < (labels == UNLABELLED).sum()
    p = upsample(model(images).z).softmax(1)
    expected = bootstrapped(p, predicted, 0.6)[kept].mean()
    torch.testing.assert_close(losses["pseudo/nll"], expected)
    torch.testing.assert_close(losses["pseudo/reg"], -0.2 * p.log().mean(1)[kept].mean())
    assert losses["domain/nll"] == 0
    found = gradients({"it": losses["pseudo/nll"]}, model)
    model.zero_grad()
    for name, gradient in gradients({"it": expected}, model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_phase_two_labels_easy_images_and_adapts_hard_ones() -> None:
    model, teacher = densifying_teacher(8)
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
    q = teacher.frozen_model(images).z.clamp(max=10).softmax(1)
    confidence = mean_confidence(teacher.frozen_model(images).z.clamp(max=10))
    teacher.min_easy_confidence.copy_(confidence.mean())  # one easy, one hard
    is_easy = confidence >= teacher.min_easy_confidence
    losses = tpld(model, batch, teacher, beta=1.0, domain=0.5)
    p, predicted = upsample(model(images).z).softmax(1), upsample(q, apply_evidence=False).argmax(1)
    kept = (labels == UNLABELLED) & is_easy[:, None, None]
    torch.testing.assert_close(
        losses["pseudo/nll"], F.nll_loss(p.log(), predicted, reduction="none")[kept].mean()
    )
    coarse = model(images).z.clamp(max=10).softmax(1)
    log_odds = teacher.discriminator(coarse)
    expected = (F.softplus(-log_odds[is_easy]).mean() + F.softplus(log_odds[~is_easy]).mean()) / 2
    torch.testing.assert_close(losses["domain/nll"], expected)
    weight = model.head.weight
    (gradient,) = torch.autograd.grad(losses["domain/nll"], weight)
    (plain,) = torch.autograd.grad(F.softplus(teacher.discriminator(coarse[~is_easy])).mean() / 2, weight)
    torch.testing.assert_close(gradient, -0.5 * plain)


@pytest.mark.parametrize("min_confidence", [0.0, 1.1])
def test_a_batch_with_only_easy_or_hard_images(min_confidence: float) -> None:
    model, teacher = densifying_teacher(8)
    teacher.min_easy_confidence.fill_(min_confidence)
    losses = tpld(model, map_batch(), teacher)
    assert (losses["pseudo/nll"] > 0) == (min_confidence == 0)
    found = gradients(losses, model)
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_invalid_parameters_raise() -> None:
    model, teacher = densifying_teacher(4)
    with pytest.raises(ValueError, match="radius"):
        tpld(model, map_batch(), teacher, radius=-1)
    with pytest.raises(ValueError, match="easy_fraction"):
        DensifyingTeacher(auxiliary_context(model), easy_fraction=0.0)
    with pytest.raises(UserError, match="for segmentation"):
        DensifyingTeacher(AuxiliaryContext(model, CLASSES, 5, 3, per_pixel=False))
