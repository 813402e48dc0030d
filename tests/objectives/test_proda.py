"""ProDA against the published formulas, on whole maps."""

from functools import partial
from typing import Any

import pytest
import torch
from tiny_maps import (
    CLASSES,
    OPEN,
    POOL_IMAGES,
    SOURCE,
    TARGET,
    WIDTH,
    TinySegmenter,
    assert_losses,
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

from ducats.models.output import Output
from ducats.objectives import softmax
from ducats.objectives.auxiliary import features_of
from ducats.objectives.self_training import proda as proda_module
from ducats.objectives.self_training.colour_jitter import jitter_colours
from ducats.objectives.self_training.output_space import OutputDiscriminator, output_space_adversarial_loss
from ducats.objectives.self_training.proda import PrototypeTeacher, proda

assert_same_gradients = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)

NO_UPDATES: dict[str, Any] = {"jitter": 0.0, "ema_rate": 0.0, "prototype_ema_rate": 0.0}


def prototype_teacher(stage: int) -> tuple[TinySegmenter, PrototypeTeacher]:
    torch.manual_seed(0)
    model = TinySegmenter()
    auxiliary = PrototypeTeacher(auxiliary_context(model), hidden=4)
    assert due_epochs(auxiliary) == [3, 7]
    refresh(auxiliary, model, *(3, 7)[:stage])
    assert auxiliary.stage == stage
    return model, auxiliary


def distances(features: Tensor, prototypes: Tensor) -> Tensor:
    """Distances ``(N, C, h, w)``, one prototype at a time."""
    return torch.stack([(features - own[:, None, None]).norm(dim=1) for own in prototypes], 1)


def present_class_means(output: Output, image: int) -> dict[int, Tensor]:
    """Mean features of each class that is predicted in an image."""
    rows, predicted = features_of(output)[image].movedim(0, -1), output.z[image].argmax(0)
    return {c: rows[predicted == c].mean(0) for c in predicted.unique().tolist()}


def test_prototypes_are_means_over_images_of_class_means() -> None:
    _, auxiliary = prototype_teacher(1)
    output = TinySegmenter()(POOL_IMAGES)
    means = [present_class_means(output, image) for image in range(len(POOL_IMAGES))]
    for c in range(CLASSES):
        own = [found[c] for found in means if c in found]
        expected = torch.stack(own).mean(0) if own else torch.zeros(WIDTH)
        torch.testing.assert_close(auxiliary.prototypes[c], expected)
        assert auxiliary.has_prototype[c] == bool(own)


def test_a_class_never_predicted_has_no_assignment() -> None:
    _, auxiliary = prototype_teacher(1)
    auxiliary.has_prototype.copy_(torch.tensor([1.0, 0.0, 1.0, 1.0]))
    log_assignment = auxiliary.log_assignment(torch.rand(2, WIDTH, 3, 4), 1.0)
    assert log_assignment[:, 1].exp().max() == 0
    torch.testing.assert_close(log_assignment.exp().sum(1), torch.ones(2, 3, 4))


def test_the_warm_up_learns_from_labels() -> None:
    model, auxiliary = prototype_teacher(0)
    losses = proda(model, map_batch(), auxiliary, jitter=0.0, domain=0.0)
    expected = softmax(model, map_batch())
    assert_losses(losses, expected)
    assert {loss.item() for name, loss in losses.items() if name not in expected} == {0}
    found = gradients(torch.stack(list(losses.values())).sum(), model)
    assert_same_gradients(found, gradients(expected["source/nll"], model))


def test_stage_one_rectifies_pseudo_labels() -> None:
    model, auxiliary = prototype_teacher(1)
    weights = {"ce": 0.2, "rce": 0.7, "reg": 0.3}
    losses = proda(model, map_batch(), auxiliary, tau=0.5, **weights, **NO_UPDATES)
    teacher, student = auxiliary.teacher(TARGET.images), model(TARGET.images)
    weight = (-distances(features_of(teacher), auxiliary.prototypes) / 0.5).softmax(1)
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
    for name, loss in expected.items():
        assert_same_gradients(gradients(losses[name], model), gradients(loss, model))
    assert losses["target/kd"] == losses["domain/least_squares"] == 0
    frozen = (*auxiliary.teacher.parameters(), *auxiliary.ema_model.parameters())
    assert not any(p.requires_grad for p in frozen)


def test_consistency_is_a_mean_over_classes_and_positions() -> None:
    model, auxiliary = prototype_teacher(1)
    found = proda(model, map_batch(), auxiliary, **NO_UPDATES)["target/consistency"]
    average, student = (features_of(network(TARGET.images)) for network in (auxiliary.ema_model, model))
    images, _, height, width = average.shape
    total = torch.zeros(())
    for n in range(images):
        for y in range(height):
            for x in range(width):
                rows = average[n, :, y, x], student[n, :, y, x]
                w, own = ((-(row - auxiliary.prototypes).norm(dim=1)).softmax(0) for row in rows)
                total = total + sum(w[c] * (w[c].log() - own[c].log()) for c in range(CLASSES))
    expected = 10 * total / (images * CLASSES * height * width)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(gradients(found, model), gradients(expected, model), rtol=1e-3, atol=1e-5)


def test_distillation_learns_confident_labels_and_probabilities_of_a_new_teacher() -> None:
    model, auxiliary = prototype_teacher(2)
    second_teacher = TinySegmenter()
    perturb(second_teacher, seed=1)
    updates = {"jitter": 0.0, "ema_rate": 0.5, "prototype_ema_rate": 0.5}  # have no effect
    losses = proda(model, map_batch(), auxiliary, confidence_threshold=0.9, kd=0.3, **updates)
    z = second_teacher(TARGET.images).z.detach()
    score, predicted = upsample(coarse_probability(z)).max(1)
    kept = OPEN & (score > 0.9)
    assert 0 < kept.sum() < OPEN.sum()
    p, q = dense_probability(model(TARGET.images).z), dense_probability(z)
    divergence = sum((q[:, c] * (q[:, c].log() - p[:, c]))[OPEN].sum() for c in range(CLASSES))
    expected = {
        "pseudo/nll": nll(p, predicted)[kept].mean(),
        "target/kd": 0.3 * divergence / (CLASSES * OPEN.sum()),
    }
    assert_losses(losses, expected)
    for name, loss in expected.items():
        assert_same_gradients(gradients(losses[name], model), gradients(loss, model))
    off = ("pseudo/rce", "pseudo/reg", "target/consistency", "domain/least_squares")
    assert {losses[name].item() for name in off} == {0}


def test_views_of_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def invert(images: Tensor, strength: float) -> Tensor:
        return 1 - images

    monkeypatch.setattr(proda_module, "jitter_colours", invert)
    weak_source, strong_source = SOURCE.images, 1 - SOURCE.images
    weak, strong = TARGET.images, 1 - TARGET.images
    views = {  # of the source, and of the target for losses, moving average and teacher
        0: (strong_source, weak, weak, weak),
        1: (weak_source, weak, weak, weak),
        2: (weak_source, strong, strong, weak),
    }
    for stage, expected in views.items():
        model, auxiliary = prototype_teacher(stage)
        seen: dict[str, list[Tensor]] = {"model": [], "average": [], "teacher": []}
        networks = {"model": model, "average": auxiliary.ema_model, "teacher": auxiliary.teacher}
        for name, network in networks.items():
            network.register_forward_pre_hook(lambda _, args, log=seen[name]: log.append(args[0]))
        proda(model, map_batch(), auxiliary)
        found = (*seen["model"][:2], seen["average"][0], seen["teacher"][0])
        torch.testing.assert_close(found, expected)
        assert any(torch.equal(images, strong) for images in seen["model"])  # for the consistency


def test_moving_average_and_prototypes_are_updated() -> None:
    model, auxiliary = prototype_teacher(1)
    prototypes, first = auxiliary.prototypes.clone(), TinySegmenter().head.weight
    losses = proda(model, map_batch(), auxiliary, ema_rate=0.25, prototype_ema_rate=0.1, jitter=0.0)
    averaged = auxiliary.ema_model.model.get_parameter("head.weight")
    torch.testing.assert_close(averaged, first.lerp(model.head.weight, 0.25))
    assert torch.equal(auxiliary.teacher.model.get_parameter("head.weight"), first)
    output = auxiliary.ema_model(TARGET.images)
    w, own = ((-distances(features_of(one), prototypes)).softmax(1) for one in (output, model(TARGET.images)))
    consistency = 10 * (w * (w / own).log()).mean()  # with the prototypes before the update
    torch.testing.assert_close(losses["target/consistency"], consistency, rtol=1e-3, atol=1e-6)
    for image in range(len(TARGET.images)):
        for c, mean in present_class_means(output, image).items():
            prototypes[c] = 0.9 * prototypes[c] + 0.1 * mean
    torch.testing.assert_close(auxiliary.prototypes, prototypes)
    torch.stack(list(losses.values())).sum().backward()  # the update leaves the graph intact


def test_least_squares_adversary_gives_each_side_its_own_gradient() -> None:
    model, discriminator = TinySegmenter(), OutputDiscriminator(CLASSES, 4)
    found = output_space_adversarial_loss(discriminator, model(SOURCE.images), model(TARGET.images), 0.3)
    s, t = (discriminator(coarse_probability(model(x).z)) for x in (SOURCE.images, TARGET.images))
    own, generator = F.mse_loss(s, torch.ones_like(s)) + F.mse_loss(t, torch.zeros_like(t)), (1 - t).square()
    torch.testing.assert_close(found, own + 0.3 * generator.mean())
    assert_same_gradients(gradients(found, discriminator), gradients(own, discriminator))
    assert_same_gradients(gradients(found, model), gradients(0.3 * generator.mean(), model))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_adversary_is_trained_in_the_warm_up_only(stage: int) -> None:
    model, auxiliary = prototype_teacher(stage)
    loss = proda(model, map_batch(), auxiliary, jitter=0.0)["domain/least_squares"]
    expected = (stage == 0) * output_space_adversarial_loss(
        auxiliary.discriminator, model(SOURCE.images), model(TARGET.images), 0.01
    )
    torch.testing.assert_close(loss, expected)
    for trained in (model, auxiliary.discriminator):
        assert_same_gradients(gradients(loss, trained), gradients(expected, trained))


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
