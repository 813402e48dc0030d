"""Self-training on maps: MRKLD, TPLD and ProDA against references on whole maps."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tiny_maps import (
    CLASSES,
    OPEN,
    PARTLY_LABELLED_TARGET,
    POOL_IMAGES,
    SOURCE,
    TARGET,
    WIDTH,
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
    perturb,
    random_images,
    refresh,
    upsample,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.objectives import AuxiliaryModule, softmax
from ducats.objectives.auxiliary import features_of
from ducats.objectives.self_training.colour_jitter import jitter_colours
from ducats.objectives.self_training.mrkld import mrkld
from ducats.objectives.self_training.proda import PrototypeTeacher, proda
from ducats.objectives.self_training.round_schedule import starting_round
from ducats.objectives.self_training.teacher import CERTAINTY_BIN_WIDTH as BIN
from ducats.objectives.self_training.teacher import Teacher, certainty_histogram, log_thresholds
from ducats.objectives.self_training.tpld import DensifyingTeacher, mean_confidence, neighbour_votes, tpld

assert_same_gradients = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "auxiliary_module"),
    [(mrkld, Teacher), (tpld, DensifyingTeacher), (proda, PrototypeTeacher)],
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


# ---- ProDA


NO_UPDATES: dict[str, Any] = {"jitter": 0.0, "ema_rate": 0.0, "prototype_ema_rate": 0.0, "domain": 0.0}


def prototype_teacher(stage: int) -> tuple[TinySegmenter, PrototypeTeacher]:
    torch.manual_seed(0)
    model = TinySegmenter()
    auxiliary = PrototypeTeacher(auxiliary_context(model), hidden=4)
    assert due_epochs(auxiliary) == [3, 7]
    refresh(auxiliary, model, *(3, 7)[:stage])
    assert auxiliary.stage == stage
    return model, auxiliary


def distances(features: Tensor, auxiliary: PrototypeTeacher) -> Tensor:
    """Distances ``(N, C, h, w)``, one prototype at a time."""
    return torch.stack([(features - own[:, None, None]).norm(dim=1) for own in auxiliary.prototypes], 1)


def class_means(features: Tensor, predicted: Tensor, otherwise: Tensor) -> Tensor:
    """Mean features ``(C, D)`` of each predicted class, and another value for the other classes."""
    rows = features.movedim(1, -1)
    return torch.stack(
        [
            rows[predicted == c].mean(0) if (predicted == c).any() else otherwise[c]
            for c in range(len(otherwise))
        ]
    )


def test_prototypes_are_means_over_predicted_classes() -> None:
    _, auxiliary = prototype_teacher(1)
    output = TinySegmenter()(POOL_IMAGES)
    predicted = output.z.argmax(1)
    expected = class_means(features_of(output), predicted, torch.zeros(CLASSES, WIDTH))
    torch.testing.assert_close(auxiliary.prototypes, expected)
    assert auxiliary.has_prototype.tolist() == [c in predicted for c in range(CLASSES)]


def test_a_class_never_predicted_has_no_assignment() -> None:
    _, auxiliary = prototype_teacher(1)
    auxiliary.has_prototype.copy_(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    log_assignment = auxiliary.log_assignment(torch.rand(2, WIDTH, 3, 4), 1.0)
    assert log_assignment[:, 1].exp().max() == 0
    torch.testing.assert_close(log_assignment.exp().sum(1), torch.ones(2, 3, 4))


def test_stage_one_rectifies_pseudo_labels() -> None:
    model, auxiliary = prototype_teacher(1)
    weights = {"ce": 0.2, "rce": 0.7, "reg": 0.3, "consistency": 2.0}
    losses = proda(model, map_batch(), auxiliary, tau=0.5, **weights, **NO_UPDATES)
    teacher, student = auxiliary.teacher(TARGET.images), model(TARGET.images)
    weight = (-distances(features_of(teacher), auxiliary) / 0.5).softmax(1)
    score = coarse_probability(teacher.z) * weight
    predicted = upsample(score / score.sum(1, keepdim=True)).argmax(1)
    assert (predicted != dense_probability(teacher.z).argmax(1)).any()
    p = dense_probability(student.z)
    one_hot = F.one_hot(predicted, CLASSES).movedim(-1, 1).clamp(min=1e-4).float()
    expected = {
        "pseudo/nll": 0.2 * nll(p, predicted)[OPEN].mean(),
        "pseudo/rce": -0.7 * (p * one_hot.log()).sum(1)[OPEN].mean(),
        "pseudo/reg": -0.3 * p.log().mean(1)[OPEN].mean(),
    }
    assert_losses(losses, expected)
    other = (-distances(features_of(student), auxiliary) / 0.5).softmax(1)
    found, consistency = losses["target/consistency"], 2.0 * (weight * (weight / other).log()).sum(1).mean()
    torch.testing.assert_close(found, consistency, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(gradients(found, model), gradients(consistency, model), rtol=1e-3, atol=1e-5)
    frozen = (*auxiliary.teacher.parameters(), *auxiliary.ema_model.parameters())
    assert not any(p.requires_grad for p in frozen)


def test_distillation_keeps_confident_labels_of_a_new_teacher() -> None:
    model, auxiliary = prototype_teacher(2)
    losses = proda(model, map_batch(), auxiliary, confidence_threshold=0.9, **NO_UPDATES)
    second_teacher = TinySegmenter()
    perturb(second_teacher, seed=1)
    score, predicted = upsample(coarse_probability(second_teacher(TARGET.images).z)).max(1)
    kept = OPEN & (score >= 0.9)
    assert 0 < kept.sum() < OPEN.sum()
    expected = nll(dense_probability(model(TARGET.images).z), predicted)[kept].mean()
    torch.testing.assert_close(losses["pseudo/nll"], expected)
    assert losses["pseudo/rce"] == losses["target/consistency"] == 0


def test_moving_average_and_prototypes_are_updated() -> None:
    model, auxiliary = prototype_teacher(1)
    before, first = auxiliary.prototypes.clone(), TinySegmenter().head.weight
    proda(model, map_batch(), auxiliary, ema_rate=0.25, prototype_ema_rate=0.1)
    averaged = auxiliary.ema_model.model.get_parameter("head.weight")
    torch.testing.assert_close(averaged, first.lerp(model.head.weight, 0.25))
    assert torch.equal(auxiliary.teacher.model.get_parameter("head.weight"), first)
    output = auxiliary.ema_model(TARGET.images)
    means = class_means(features_of(output), output.z.argmax(1), before)
    torch.testing.assert_close(auxiliary.prototypes, before.lerp(means, 0.1))


def test_jitter_changes_only_colours() -> None:
    images = random_images(0, 50)
    torch.manual_seed(3)
    jittered = jitter_colours(images, 0.4)
    assert jittered.shape == images.shape
    assert 0 <= jittered.min() <= jittered.max() <= 1
    assert (jittered != images).flatten(1).any(1).all()
    torch.testing.assert_close(jitter_colours(images, 0.0), images)
    flat = torch.full((200, 3, 2, 2), 0.5)  # no contrast or saturation, so only brightness changes
    factor = jitter_colours(flat, 0.4)[:, 0, 0, 0] / 0.5
    assert 0.6 <= factor.min() < 0.65
    assert 1.35 < factor.max() <= 1.4
    grey = images[:, :1]
    assert jitter_colours(grey, 0.4).shape == grey.shape


# ---- Adversarial loss in output space, which warms up ProDA


@pytest.mark.parametrize("stage", [0, 1])
def test_adversarial_loss_trains_the_model_only_in_the_warm_up(stage: int) -> None:
    model, auxiliary = prototype_teacher(stage)
    loss = proda(model, map_batch(), auxiliary, jitter=0.0, domain=0.5)["domain/nll"]
    source, target = (
        auxiliary.discriminator(coarse_probability(model(images).z))
        for images in (SOURCE.images, TARGET.images)
    )
    target_loss = F.softplus(target).mean() / 2
    expected = F.softplus(-source).mean() / 2 + target_loss
    torch.testing.assert_close(loss, expected)
    assert_same_gradients(
        gradients(loss, auxiliary.discriminator), gradients(expected, auxiliary.discriminator)
    )
    strength = 0.0 if stage else -0.5  # reversed
    plain = gradients(target_loss, model)
    assert_same_gradients(gradients(loss, model), tuple(strength * gradient for gradient in plain))
