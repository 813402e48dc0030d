"""Self-training on maps: MRKLD, TPLD, ProDA and Seg-Uncertainty against plain references."""

import math
from typing import Any

import pytest
import torch
from tiny_maps import (
    CLASSES,
    SIZE,
    WIDTH,
    Pool,
    TinySegmenter,
    at_epoch,
    auxiliary_context,
    gradients,
    map_batch,
    perturb,
    random_images,
    target_maps,
    upsample,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.data.domain import UNLABELLED
from ducats.objectives import AuxiliaryContext, softmax
from ducats.objectives.self_training.colour_jitter import jitter_colours
from ducats.objectives.self_training.mrkld import mrkld
from ducats.objectives.self_training.proda import PrototypeTeacher, proda
from ducats.objectives.self_training.round_schedule import starting_round
from ducats.objectives.self_training.seg_uncertainty import TwoHeads, seg_uncertainty
from ducats.objectives.self_training.teacher import CERTAINTY_BIN_WIDTH as BIN
from ducats.objectives.self_training.teacher import Teacher, certainty_histogram, log_thresholds
from ducats.objectives.self_training.tpld import DensifyingTeacher, mean_confidence, neighbour_votes, tpld
from ducats.utils.errors import UserError

# ---- MRKLD against plain references: thresholds by sorting, losses on full-resolution maps


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
    assert log_thresholds(certainty_histogram(z), 1.0)[0].exp() <= 0.55


def test_thresholds_are_at_least_one_over_c() -> None:
    z = torch.zeros(1, 300, 2, 2)  # -ln(1 - 1/300) falls into the first bin, whose lower edge is 0
    assert log_thresholds(certainty_histogram(z), 0.5)[0].exp().item() == pytest.approx(1 / 300)


def test_rounds_divide_the_training() -> None:
    at = [starting_round(at_epoch(e, 50), 0.4, 4) for e in range(50)]
    assert [(e, number) for e, number in enumerate(at) if number] == [(20, 1), (28, 2), (35, 3), (43, 4)]
    assert starting_round(at_epoch(1, 2), 0.4, 4) == 3  # the first three start at the same epoch


def trained_teacher(epoch: int = 4) -> tuple[TinySegmenter, Teacher]:
    model = TinySegmenter()
    teacher = Teacher(auxiliary_context(model), warmup=0.4, rounds=3, portion=0.3, growth=0.1)
    pool = Pool(model, random_images(5, 6))
    assert [e for e in range(10) if teacher.is_due(at_epoch(e))] == [4, 6, 8]
    teacher.refresh(at_epoch(epoch), pool)
    perturb(model)
    return model, teacher


def test_each_round_has_its_own_portion_and_teacher() -> None:
    for epoch, portion in ((4, 0.3), (6, 0.4), (8, 0.5)):
        _, teacher = trained_teacher(epoch)
        z = TinySegmenter()(random_images(5, 6)).z.clamp(max=10)
        torch.testing.assert_close(teacher.log_threshold, log_thresholds(certainty_histogram(z), portion))
        first, frozen = TinySegmenter().state_dict(), teacher.frozen_model.model.state_dict()
        assert all(torch.equal(first[name], value) for name, value in frozen.items())


def reference(model: TinySegmenter, teacher: Teacher) -> tuple[Tensor, Tensor]:
    images, labels = target_maps()
    p, q = upsample(model(images).z).softmax(1), upsample(teacher.frozen_model(images).z).softmax(1)
    fits, smooth = [], []
    for n in range(len(images)):
        for y in range(SIZE[0]):
            for x in range(SIZE[1]):
                ratio = q[n, :, y, x] / teacher.log_threshold.exp()
                if labels[n, y, x] == UNLABELLED and ratio.max() >= 1:
                    fits.append(-p[n, ratio.argmax(), y, x].log())
                    smooth.append(-p[n, :, y, x].log().mean())
    assert 0 < len(fits) < (labels == UNLABELLED).sum()
    return torch.stack(fits).mean(), torch.stack(smooth).mean()


def test_losses_match_the_full_resolution_map() -> None:
    model, teacher = trained_teacher()
    losses = mrkld(model, map_batch(), teacher, nll=0.7, reg=0.2)
    fit, smooth = reference(model, teacher)
    torch.testing.assert_close(losses["pseudo/nll"], 0.7 * fit)
    torch.testing.assert_close(losses["pseudo/reg"], 0.2 * smooth)
    torch.testing.assert_close(losses["source/nll"], softmax(model, map_batch())["source/nll"])
    found = gradients({name: loss for name, loss in losses.items() if name.startswith("pseudo")}, model)
    model.zero_grad()
    expected = gradients(dict(zip("ab", (0.7 * fit, 0.2 * smooth), strict=True)), model)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in teacher.parameters())


def test_before_the_first_round_nothing_is_kept() -> None:
    model = TinySegmenter()
    losses = mrkld(model, map_batch(), Teacher(auxiliary_context(model)))
    assert losses["pseudo/nll"] == losses["pseudo/reg"] == 0
    found = gradients(losses, model)
    model.zero_grad()
    expected = gradients(dict(softmax(model, map_batch())), model)
    assert all(torch.equal(gradient, expected[name]) for name, gradient in found.items())


def test_labelled_pixels_are_trained_on_and_not_pseudo_labelled() -> None:
    model, teacher = trained_teacher()
    batch = map_batch(labelled=True)
    assert batch.target is not None
    losses, output = mrkld(model, batch, teacher), model(batch.target.images)
    labels = batch.target.labels.long()
    expected = F.cross_entropy(upsample(output.z), labels.masked_fill(labels < 0, -100))
    torch.testing.assert_close(losses["labelled/nll"], expected)
    assert losses["pseudo/nll"] != mrkld(model, map_batch(), teacher)["pseudo/nll"]


@pytest.mark.parametrize("params", [{"warmup": 1.0}, {"rounds": 0}, {"portion": 0.0}, {"max_portion": 1.5}])
def test_mrkld_rejects_invalid_parameters(params: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        Teacher(auxiliary_context(TinySegmenter()), **params)  # type: ignore[arg-type]


# ---- TPLD: voting against plain loops, phases and losses against full-resolution maps


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
    batch, (images, labels) = map_batch(), target_maps()
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
    batch, (images, labels) = map_batch(), target_maps()
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


def test_tpld_rejects_invalid_parameters() -> None:
    model, teacher = densifying_teacher(4)
    with pytest.raises(ValueError, match="radius"):
        tpld(model, map_batch(), teacher, radius=-1)
    with pytest.raises(ValueError, match="easy_fraction"):
        DensifyingTeacher(auxiliary_context(model), easy_fraction=0.0)
    with pytest.raises(UserError, match="for segmentation"):
        DensifyingTeacher(AuxiliaryContext(model, CLASSES, 5, 3, per_pixel=False))


# ---- ProDA: prototypes, rectified labels and losses against plain references


NO_UPDATES: dict[str, Any] = {"jitter": 0.0, "ema_rate": 0.0, "prototype_ema_rate": 0.0, "domain": 0.0}


def prototype_teacher(stage: int) -> tuple[TinySegmenter, PrototypeTeacher]:
    torch.manual_seed(0)
    model = TinySegmenter()
    auxiliary = PrototypeTeacher(auxiliary_context(model), hidden=4)
    assert [e for e in range(10) if auxiliary.is_due(at_epoch(e))] == [3, 7]
    for number, epoch in enumerate((3, 7)[:stage]):
        auxiliary.refresh(at_epoch(epoch), Pool(model, random_images(5, 6)))
        perturb(model, seed=number + 1)
    assert auxiliary.stage == stage
    return model, auxiliary


def distances(features: Tensor, auxiliary: PrototypeTeacher) -> Tensor:
    """Distances ``(N, C, h, w)``, one position at a time."""
    rows = features.permute(0, 2, 3, 1).reshape(-1, WIDTH)
    distance = torch.stack(
        [torch.stack([(row - own).norm() for own in auxiliary.prototypes]) for row in rows]
    )
    return distance.view(len(features), *features.shape[-2:], CLASSES).permute(0, 3, 1, 2)


def test_prototypes_are_means_over_predicted_classes() -> None:
    _, auxiliary = prototype_teacher(1)
    output = TinySegmenter()(random_images(5, 6))
    assert output.features is not None
    predicted, features = output.z.argmax(1), output.features.permute(0, 2, 3, 1)
    for c in range(CLASSES):
        is_class = predicted == c
        assert auxiliary.has_prototype[c] == is_class.any()
        expected = features[is_class].mean(0) if is_class.any() else torch.zeros(WIDTH)
        torch.testing.assert_close(auxiliary.prototypes[c], expected)


def test_a_class_never_predicted_has_no_assignment() -> None:
    _, auxiliary = prototype_teacher(1)
    auxiliary.has_prototype.copy_(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    log_assignment = auxiliary.log_assignment(torch.rand(2, WIDTH, 3, 4), 1.0)
    assert log_assignment[:, 1].exp().max() == 0
    torch.testing.assert_close(log_assignment.exp().sum(1), torch.ones(2, 3, 4))


def test_stage_one_rectifies_pseudo_labels() -> None:
    model, auxiliary = prototype_teacher(1)
    batch, (images, labels) = map_batch(), target_maps()
    losses = proda(model, batch, auxiliary, ce=0.2, rce=0.7, reg=0.3, consistency=2.0, tau=0.5, **NO_UPDATES)
    teacher, student = auxiliary.teacher(images), model(images)
    assert teacher.features is not None
    weight = (-distances(teacher.features, auxiliary) / 0.5).softmax(1)
    score = teacher.z.clamp(max=10).softmax(1) * weight
    predicted = upsample(score / score.sum(1, keepdim=True), apply_evidence=False).argmax(1)
    assert (predicted != upsample(teacher.z).argmax(1)).any()
    open_ = labels == UNLABELLED
    p = upsample(student.z).softmax(1)
    torch.testing.assert_close(
        losses["pseudo/nll"], 0.2 * F.nll_loss(p.log(), predicted, reduction="none")[open_].mean()
    )
    one_hot = F.one_hot(predicted, CLASSES).movedim(-1, 1).clamp(min=1e-4).float()
    torch.testing.assert_close(losses["pseudo/rce"], -0.7 * (p * one_hot.log()).sum(1)[open_].mean())
    torch.testing.assert_close(losses["pseudo/reg"], -0.3 * p.log().mean(1)[open_].mean())
    other = (-distances(student.features, auxiliary) / 0.5).softmax(1)
    expected = 2.0 * (weight * (weight / other).log()).sum(1).mean()
    torch.testing.assert_close(losses["target/consistency"], expected, rtol=1e-3, atol=1e-6)
    found = gradients({"it": losses["target/consistency"]}, model)
    model.zero_grad()
    for name, gradient in gradients({"it": expected}, model).items():
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for p in (*auxiliary.teacher.parameters(), *auxiliary.ema_model.parameters()))


def test_distillation_keeps_confident_labels_of_a_new_teacher() -> None:
    model, auxiliary = prototype_teacher(2)
    batch, (images, labels) = map_batch(), target_maps()
    losses = proda(model, batch, auxiliary, confidence_threshold=0.9, **NO_UPDATES)
    once = TinySegmenter()
    perturb(once, seed=1)
    score, predicted = upsample(once(images).z.clamp(max=10).softmax(1), apply_evidence=False).max(1)
    kept = (labels == UNLABELLED) & (score >= 0.9)
    assert 0 < kept.sum() < (labels == UNLABELLED).sum()
    p = upsample(model(images).z).softmax(1)
    torch.testing.assert_close(
        losses["pseudo/nll"], F.nll_loss(p.log(), predicted, reduction="none")[kept].mean()
    )
    assert losses["pseudo/rce"] == losses["target/consistency"] == 0


def test_moving_average_and_prototypes_are_updated() -> None:
    model, auxiliary = prototype_teacher(1)
    before, first = auxiliary.prototypes.clone(), TinySegmenter().head.weight
    proda(model, map_batch(), auxiliary, ema_rate=0.25, prototype_ema_rate=0.1)
    torch.testing.assert_close(
        auxiliary.ema_model.model.get_parameter("head.weight"), first.lerp(model.head.weight, 0.25)
    )
    assert torch.equal(auxiliary.teacher.model.get_parameter("head.weight"), first)
    batch = map_batch()
    assert batch.target is not None
    output = auxiliary.ema_model(batch.target.images)
    assert output.features is not None
    predicted, features = output.z.argmax(1), output.features.permute(0, 2, 3, 1)
    for c in range(CLASSES):
        is_class = predicted == c
        expected = before[c].lerp(features[is_class].mean(0), 0.1) if is_class.any() else before[c]
        torch.testing.assert_close(auxiliary.prototypes[c], expected)


def test_warm_up_has_only_source_and_adversarial_losses() -> None:
    model, auxiliary = prototype_teacher(0)
    losses = proda(model, map_batch(), auxiliary, domain=0.5)
    assert all(loss == 0 for name, loss in losses.items() if name.split("/")[0] in ("pseudo", "target"))
    found = gradients({"it": losses["domain/nll"]}, model)
    assert found["head.weight"].abs().sum() > 0
    model, auxiliary = prototype_teacher(1)
    found = gradients({"it": proda(model, map_batch(), auxiliary, domain=0.5)["domain/nll"]}, model)
    assert found["head.weight"].abs().sum() == 0


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


def test_proda_rejects_invalid_parameters() -> None:
    model, auxiliary = prototype_teacher(0)
    with pytest.raises(ValueError, match="distillation_start"):
        PrototypeTeacher(auxiliary_context(model), warmup=0.5, distillation_start=0.4)
    with pytest.raises(ValueError, match="tau"):
        proda(model, map_batch(), auxiliary, tau=0.0)
    with pytest.raises(UserError, match="for segmentation"):
        PrototypeTeacher(AuxiliaryContext(model, CLASSES, WIDTH, 3, per_pixel=False))


# ---- Seg-Uncertainty against its formula on full-resolution maps


def two_heads(*, second_stage: bool) -> tuple[TinySegmenter, TwoHeads]:
    torch.manual_seed(0)
    model = TinySegmenter()
    heads = TwoHeads(auxiliary_context(model), dropout=0.0, hidden=4)
    if second_stage:
        assert [e for e in range(10) if heads.is_due(at_epoch(e))] == [5]
        heads.refresh(at_epoch(5), Pool(model, random_images(5, 2)))
        perturb(model)
        perturb(heads.aux, seed=2)
    return model, heads


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(1)


def both_probabilities(model: TinySegmenter, heads: TwoHeads, images: Tensor) -> tuple[Tensor, Tensor]:
    output = model(images)
    assert output.features is not None
    return upsample(output.z).softmax(1), upsample(heads.aux(output.features)).softmax(1)


def test_stage_one_makes_the_heads_agree() -> None:
    model, heads = two_heads(second_stage=False)
    batch = map_batch()
    assert batch.target is not None
    losses = seg_uncertainty(model, batch, heads, memory=0.3, aux=0.25)
    p, q = both_probabilities(model, heads, batch.target.images)
    open_ = batch.target.labels == UNLABELLED
    torch.testing.assert_close(losses["target/memory"], 0.3 * kl(p, q)[open_].mean())
    assert losses["pseudo/rectified"] == 0
    p, q = both_probabilities(model, heads, batch.source.images)
    torch.testing.assert_close(losses["source/nll"], F.nll_loss(p.log(), batch.source.labels.long()))
    torch.testing.assert_close(losses["source/aux"], 0.25 * F.nll_loss(q.log(), batch.source.labels.long()))


def test_stage_two_weights_pseudo_labels_by_disagreement() -> None:
    model, heads = two_heads(second_stage=True)
    batch, (images, labels) = map_batch(), target_maps()
    losses = seg_uncertainty(model, batch, heads, aux=0.5, rectified=0.8)
    first = heads.frozen_model(images)
    coarse = first.z.clamp(max=10).softmax(1) + 0.5 * heads.frozen_aux.model(first.features).clamp(
        max=10
    ).softmax(1)
    predicted = upsample(coarse, apply_evidence=False).argmax(1)
    p, q = both_probabilities(model, heads, images)
    disagreement = kl(q, p)
    each = [
        F.nll_loss(one.log(), predicted, reduction="none") * torch.exp(-disagreement) + disagreement
        for one in (p, q)
    ]
    expected = 0.8 * (each[0] + 0.5 * each[1])[labels == UNLABELLED].mean()
    torch.testing.assert_close(losses["pseudo/rectified"], expected, rtol=1e-5, atol=1e-6)
    assert losses["target/memory"] == 0
    found = gradients({"it": losses["pseudo/rectified"]}, model)
    model.zero_grad()
    for name, gradient in gradients({"it": expected}, model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in (*heads.frozen_model.parameters(), *heads.frozen_aux.parameters()))


@pytest.mark.parametrize("second_stage", [False, True])
def test_adversarial_loss_trains_the_model_only_in_stage_one(second_stage: bool) -> None:
    model, heads = two_heads(second_stage=second_stage)
    loss = seg_uncertainty(model, map_batch(), heads, domain=0.5)["domain/nll"]
    found = gradients({"it": loss}, model)
    assert all((gradient == 0).all() for gradient in found.values()) == second_stage
    discriminator_gradients = [p.grad for p in heads.discriminator.parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in discriminator_gradients)


def test_adversarial_gradient_is_reversed_and_scaled() -> None:
    model, heads = two_heads(second_stage=False)
    batch = map_batch()
    assert batch.target is not None
    weight = next(iter(model.head.parameters()))
    loss = seg_uncertainty(model, batch, heads, domain=0.5)["domain/nll"]
    (gradient,) = torch.autograd.grad(loss, weight)
    log_odds = heads.discriminator(coarse_probability(model, batch.target.images))
    (plain,) = torch.autograd.grad(F.softplus(log_odds).mean() / 2, weight)
    torch.testing.assert_close(gradient, -0.5 * plain)


def coarse_probability(model: TinySegmenter, images: Tensor) -> Tensor:
    probability: Tensor = model(images).z.clamp(max=10).softmax(1)
    return probability


def test_both_heads_learn_from_labels_without_unlabelled_target() -> None:
    model, heads = two_heads(second_stage=True)
    batch = map_batch()
    alone = type(batch)(batch.source, batch.source, None)
    losses = seg_uncertainty(model, alone, heads)
    assert losses.keys() == {"source/nll", "labelled/nll", "source/aux", "labelled/aux"}
    torch.testing.assert_close(losses["labelled/nll"], softmax(model, alone)["labelled/nll"])


def test_classification_raises() -> None:
    with pytest.raises(UserError, match="for segmentation"):
        TwoHeads(AuxiliaryContext(TinySegmenter(), CLASSES, 5, 3, per_pixel=False))
