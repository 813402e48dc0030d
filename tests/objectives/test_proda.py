"""ProDA: prototypes, rectified labels and losses against plain references; an interrupted run."""

from typing import Any

import pytest
import torch
from tiny_maps import (
    CLASSES,
    WIDTH,
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
from ducats.objectives.self_training.colour_jitter import jitter_colours
from ducats.objectives.self_training.proda import PrototypeTeacher, proda
from ducats.utils.errors import UserError

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
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
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
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
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


def test_invalid_parameters_raise() -> None:
    model, auxiliary = prototype_teacher(0)
    with pytest.raises(ValueError, match="distillation_start"):
        PrototypeTeacher(auxiliary_context(model), warmup=0.5, distillation_start=0.4)
    with pytest.raises(ValueError, match="tau"):
        proda(model, map_batch(), auxiliary, tau=0.0)
    with pytest.raises(UserError, match="for segmentation"):
        PrototypeTeacher(AuxiliaryContext(model, CLASSES, WIDTH, 3, per_pixel=False))
