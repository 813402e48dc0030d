"""Self-training on maps: MRKLD and TPLD against references on whole maps."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tiny_maps import (
    CLASSES,
    OPEN,
    PARTLY_LABELLED_TARGET,
    POOL_IMAGES,
    TARGET,
    TinySegmenter,
    assert_losses,
    at_epoch,
    auxiliary_context,
    coarse_probability,
    dense_probability,
    due_epochs,
    gradients,
    map_batch,
    nll,
    refresh,
    upsample,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.objectives import AuxiliaryModule, softmax
from ducats.objectives.self_training.mrkld import mrkld
from ducats.objectives.self_training.round_schedule import starting_round
from ducats.objectives.self_training.teacher import CERTAINTY_BIN_WIDTH as BIN
from ducats.objectives.self_training.teacher import Teacher, certainty_histogram, log_thresholds
from ducats.objectives.self_training.tpld import DensifyingTeacher, mean_confidence, neighbour_votes, tpld

assert_same_gradients = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "auxiliary_module"),
    [(mrkld, Teacher), (tpld, DensifyingTeacher)],
)
def test_before_the_first_round_the_model_learns_from_labels_only(
    objective: Callable[..., dict[str, Tensor]], auxiliary_module: Callable[..., AuxiliaryModule]
) -> None:
    model = TinySegmenter()
    losses = objective(model, map_batch(), auxiliary_module(auxiliary_context(model)))
    losses.pop("domain/nll", None)
    expected = softmax(model, map_batch())
    assert_losses(losses, expected)
    assert {loss.item() for name, loss in losses.items() if name not in expected} == {0}
    found = gradients(torch.stack(list(losses.values())).sum(), model)
    assert_same_gradients(found, gradients(expected["source/nll"], model))


# ---- MRKLD


@pytest.mark.parametrize("portion", [0.05, 0.2, 0.5, 1.0])
def test_thresholds_are_quantiles_up_to_a_bin(portion: float) -> None:
    z = 6 * torch.randn(8, CLASSES, 10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, 3] -= 1000  # never predicted
    found = log_thresholds(certainty_histogram(z[:4]) + certainty_histogram(z[4:]), portion)
    p = z.softmax(1)
    for c in range(3):
        confidences = p.amax(1)[p.argmax(1) == c].sort(descending=True).values
        exact = confidences[math.ceil(portion * len(confidences)) - 1]
        # The threshold is at most one certainty bin below the quantile.
        below = 1 - (1 - exact) * math.exp(BIN)
        assert below - 1e-6 <= found[c].exp() <= exact + 1e-6
    assert found[3] == torch.inf


def test_thresholds_by_hand() -> None:
    p = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.55])  # all are class 0 of two
    z = torch.stack([p, 1 - p], 1).log()
    kept = p >= log_thresholds(certainty_histogram(z), 0.4)[0].exp()
    assert kept.tolist() == [True, True, False, False, False]
    # -ln(1 - 1/300) falls into the first bin, whose lower edge is 0, but no confidence is below 1/300.
    lowest = log_thresholds(certainty_histogram(torch.zeros(1, 300, 2, 2)), 0.5)[0]
    assert lowest.exp().item() == pytest.approx(1 / 300)


def test_rounds_divide_the_training() -> None:
    at = [starting_round(at_epoch(e, 50), 0.4, 4) for e in range(50)]
    assert [(e, number) for e, number in enumerate(at) if number] == [(20, 1), (28, 2), (35, 3), (43, 4)]
    assert starting_round(at_epoch(1, 2), 0.4, 4) == 3  # the first three start at the same epoch


def trained_teacher(epoch: int = 4) -> tuple[TinySegmenter, Teacher]:
    model = TinySegmenter()
    teacher = Teacher(auxiliary_context(model), warmup=0.4, rounds=3, portion=0.3, growth=0.1)
    refresh(teacher, model, epoch)
    return model, teacher


@pytest.mark.parametrize(("epoch", "portion"), [(4, 0.3), (6, 0.4), (8, 0.5)])
def test_each_round_has_its_own_portion_and_teacher(epoch: int, portion: float) -> None:
    _, teacher = trained_teacher(epoch)
    assert due_epochs(teacher) == [4, 6, 8]
    z = TinySegmenter()(POOL_IMAGES).z.clamp(max=10)
    torch.testing.assert_close(teacher.log_threshold, log_thresholds(certainty_histogram(z), portion))
    torch.testing.assert_close(
        teacher.frozen_model.model.state_dict(), TinySegmenter().state_dict(), rtol=0, atol=0
    )


def test_mrkld_learns_from_confident_pseudo_labels() -> None:
    model, teacher = trained_teacher()
    losses = mrkld(model, map_batch(), teacher, nll=0.7, reg=0.2)
    p, q = (dense_probability(network(TARGET.images).z) for network in (model, teacher.frozen_model))
    ratio, label = (q / teacher.log_threshold.exp()[:, None, None]).max(1)
    kept = OPEN & (ratio >= 1)
    assert 0 < kept.sum() < OPEN.sum()
    expected = {
        "pseudo/nll": 0.7 * nll(p, label)[kept].mean(),
        "pseudo/reg": -0.2 * p.log().mean(1)[kept].mean(),
    }
    assert_losses(losses, expected | softmax(model, map_batch()))
    for name, loss in expected.items():
        assert_same_gradients(gradients(losses[name], model), gradients(loss, model))
    assert not any(p.requires_grad for p in teacher.parameters())


def test_labelled_pixels_are_trained_on_and_not_pseudo_labelled() -> None:
    model, teacher = trained_teacher()
    losses = mrkld(model, map_batch(labelled=True), teacher)
    images, labels = PARTLY_LABELLED_TARGET
    is_labelled = labels >= 0
    expected = nll(dense_probability(model(images).z), labels.clamp(min=0))[is_labelled].mean()
    torch.testing.assert_close(losses["labelled/nll"], expected)
    assert losses["pseudo/nll"] != mrkld(model, map_batch(), teacher)["pseudo/nll"]


# ---- TPLD


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


def densifying_teacher(epoch: int) -> tuple[TinySegmenter, DensifyingTeacher]:
    torch.manual_seed(0)
    model = TinySegmenter()
    teacher = DensifyingTeacher(
        auxiliary_context(model), warmup=0.4, rounds=3, portion=0.3, easy_fraction=0.5, hidden=4
    )
    refresh(teacher, model, epoch)
    return model, teacher


def test_phase_two_is_the_second_half_and_half_the_pool_is_easy() -> None:
    assert [densifying_teacher(epoch)[1].phase.item() for epoch in (4, 6, 8)] == [1, 1, 2]
    _, teacher = densifying_teacher(8)
    z = TinySegmenter()(POOL_IMAGES).z.clamp(max=10)
    confidence = mean_confidence(z)
    assert (confidence >= teacher.min_easy_confidence).sum() == 3
    torch.testing.assert_close(confidence, z.softmax(1).amax(1).flatten(1).mean(1))


def test_phase_one_learns_from_voted_labels() -> None:
    model, teacher = densifying_teacher(4)
    losses = tpld(model, map_batch(), teacher, beta=0.6, reg=0.2, radius=1)
    q = coarse_probability(teacher.frozen_model(TARGET.images).z)
    score, predicted = upsample(neighbour_votes_by_loops(q, teacher.log_threshold.exp(), 1)).max(1)
    kept = OPEN & (score >= 1)
    assert 0 < kept.sum() < OPEN.sum()
    p = dense_probability(model(TARGET.images).z)
    bootstrapped = 0.6 * nll(p, predicted) + 0.4 * nll(p, p.argmax(1))
    expected = bootstrapped[kept].mean()
    regulariser = -0.2 * p.log().mean(1)[kept].mean()
    assert_losses(
        losses, {"pseudo/nll": expected, "pseudo/reg": regulariser, "domain/nll": torch.tensor(0.0)}
    )
    assert_same_gradients(gradients(losses["pseudo/nll"], model), gradients(expected, model))


def test_phase_two_labels_easy_images_and_adapts_hard_ones() -> None:
    model, teacher = densifying_teacher(8)
    z = teacher.frozen_model(TARGET.images).z
    confidence = mean_confidence(z.clamp(max=10))
    teacher.min_easy_confidence.copy_(confidence.mean())  # one easy, one hard
    is_easy = confidence >= teacher.min_easy_confidence
    losses = tpld(model, map_batch(), teacher, beta=1.0, domain=0.5)
    p, predicted = dense_probability(model(TARGET.images).z), upsample(coarse_probability(z)).argmax(1)
    coarse = coarse_probability(model(TARGET.images).z)
    log_odds = teacher.discriminator(coarse)
    domain = (F.softplus(-log_odds[is_easy]).mean() + F.softplus(log_odds[~is_easy]).mean()) / 2
    kept = OPEN & is_easy[:, None, None]
    assert_losses(losses, {"pseudo/nll": nll(p, predicted)[kept].mean(), "domain/nll": domain})
    (gradient,) = torch.autograd.grad(losses["domain/nll"], model.head.weight)
    hard = F.softplus(teacher.discriminator(coarse[~is_easy])).mean() / 2
    torch.testing.assert_close(gradient, -0.5 * torch.autograd.grad(hard, model.head.weight)[0])


@pytest.mark.parametrize("min_confidence", [0.0, 1.1])
def test_a_batch_with_only_easy_or_hard_images(min_confidence: float) -> None:
    model, teacher = densifying_teacher(8)
    teacher.min_easy_confidence.fill_(min_confidence)
    losses = tpld(model, map_batch(), teacher)
    assert (losses["pseudo/nll"] > 0) == (min_confidence == 0)
    found = gradients(torch.stack(list(losses.values())).sum(), model)
    assert all(gradient.isfinite().all() for gradient in found)
