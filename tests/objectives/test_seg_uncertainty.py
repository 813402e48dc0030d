"""Seg-Uncertainty against plain computations of the published formulas on whole maps."""

from collections.abc import Iterator
from functools import partial
from inspect import signature

import pytest
import torch
from tiny_maps import (
    CLASSES,
    OPEN,
    SIZE,
    SOURCE,
    TARGET,
    TinySegmenter,
    assert_losses,
    at_epoch,
    auxiliary_context,
    dense_probability,
    due_epochs,
    gradients,
    map_batch,
    nll,
    perturb,
    refresh,
    upsample,
)
from torch import Tensor
from torch.nn import functional as F

from ducats.data.domain import VOID
from ducats.models import MODELS, EvidentialModel
from ducats.objectives import AuxiliaryContext, Batch, LabelledImages, softmax
from ducats.objectives.auxiliary import features_of, split_output
from ducats.objectives.self_training.seg_uncertainty import (
    ClassBalance,
    TwoHeads,
    balanced_nll,
    seg_uncertainty,
)

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)
MEMORY_EPOCH, STAGE_TWO_EPOCH = 3, 5  # of ten


def two_heads(*epochs: int, **params: float) -> tuple[TinySegmenter, TwoHeads]:
    """Build a model and its heads, refreshed at some epochs of ten and changed afterwards."""
    torch.manual_seed(0)
    model = TinySegmenter()
    heads = TwoHeads(auxiliary_context(model), dropout=0.0, hidden=4, **params)  # type: ignore[arg-type]
    refresh(heads, model, *epochs)
    perturb(heads.aux, seed=2)
    return model, heads


def all_gradients(loss: Tensor, model: TinySegmenter, heads: TwoHeads) -> tuple[Tensor, ...]:
    return (*gradients(loss, model), *gradients(loss, heads.aux))


def both_logits(model: TinySegmenter, heads: TwoHeads, images: Tensor) -> tuple[Tensor, Tensor]:
    output = model(images)
    return output.z, heads.aux([features_of(output)])[0]


def both_probabilities(model: TinySegmenter, heads: TwoHeads, images: Tensor) -> tuple[Tensor, Tensor]:
    main, aux = both_logits(model, heads, images)
    return dense_probability(main), dense_probability(aux)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(1)


# ---- Stage I: class balance and hard labels


def plain_weights(
    batches: list[Tensor], max_weight: float, small: float, rate: float
) -> Iterator[list[float]]:
    """Class weights of each batch, class by class."""
    often = [1.0] * CLASSES
    for labels in batches:
        weights = []
        for c in range(CLASSES):
            count = sum(int(label == c) for label in labels.flatten().tolist())
            often[c] = (1 - rate) * often[c] + rate * (max_weight if count == 0 else 1.0)
            weights.append((max_weight if count < small * labels.numel() else 1.0) * often[c])
        yield weights


def rare_labels() -> Tensor:
    """Label maps without class 3, with few pixels of class 2 and some void ones."""
    labels = SOURCE.labels % 2
    labels[0, 0, :3] = 2
    labels[:, -1] = VOID
    return labels


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_class_weights_of_small_and_absent_classes(rate: float) -> None:
    batches = [SOURCE.labels, rare_labels(), rare_labels(), SOURCE.labels]
    balance = ClassBalance(CLASSES, 7.0, 0.05, rate)
    found = [balance(labels).tolist() for labels in batches]
    expected = list(plain_weights(batches, 7.0, 0.05, rate))
    torch.testing.assert_close(found, expected)
    assert found[1][2] == 7.0  # small
    assert found[1][3] == pytest.approx(7.0 * (1 + 6 * rate))  # absent
    assert found[0] == [1.0] * CLASSES


def test_published_area_of_small_classes() -> None:
    """64 x 64 pixels per image of 1024 x 512."""
    balance = TwoHeads(auxiliary_context(TinySegmenter())).source_balance
    labels = torch.zeros(2, 512, 1024, dtype=torch.int8)
    labels[0, :128, :64], labels[1, :128, :64] = 1, 2
    labels[1, 0, 0] = 0
    assert balance(labels)[:3].tolist() == [1.0, 1.0, 7.0]


def plain_hard_loss(p: Tensor, labels: Tensor, weights: list[float], hard: float) -> Tensor:
    """Weighted mean over the pixels at or above a percentile of the weighted loss, pixel by pixel."""
    n, height, width = labels.shape
    losses = {}
    for i, y, x in ((i, y, x) for i in range(n) for y in range(height) for x in range(width)):
        c = int(labels[i, y, x])
        losses[i, y, x] = -weights[c] * p[i, c, y, x].log() if c >= 0 else torch.zeros(())
    threshold = torch.quantile(torch.stack(list(losses.values())).detach().double(), hard)
    kept = [at for at, loss in losses.items() if loss.double() >= threshold and labels[at] >= 0]
    total = sum(weights[int(labels[at])] for at in kept)
    return torch.stack([losses[at] for at in kept]).sum() / total


@pytest.mark.parametrize("hard", [0.8, 0.3])
def test_only_the_hardest_labels_count(hard: float) -> None:
    model, labels, weights = TinySegmenter(), rare_labels(), [1.0, 2.5, 7.0, 1.0]
    output = model(SOURCE.images)
    found = balanced_nll(output, labels, torch.tensor(weights), hard)
    expected = plain_hard_loss(dense_probability(output.z), labels, weights, hard)
    assert_close(found, expected)
    assert_close(gradients(found, model), gradients(expected, model))


def test_without_hard_labels_it_is_the_weighted_cross_entropy() -> None:
    model, labels, weights = TinySegmenter(), rare_labels(), torch.tensor([1.0, 2.5, 7.0, 1.0])
    output = model(SOURCE.images)
    found = balanced_nll(output, labels, weights, 0.0)
    expected = F.cross_entropy(upsample(output.z).clamp(max=10), labels, weights, ignore_index=VOID)
    assert_close(found, expected)
    assert_close(gradients(found, model), gradients(expected, model))
    assert balanced_nll(output, torch.full_like(labels, VOID), weights, 0.8) == 0


def test_stage_one_learns_from_balanced_hard_source_labels() -> None:
    model, heads = two_heads(small=0.05)
    source = LabelledImages(SOURCE.images, rare_labels())
    losses = seg_uncertainty(
        model, Batch(source, None, None, TARGET, has_target_labels=False), heads, aux=0.25
    )
    (weights,) = plain_weights([source.labels], 7.0, 0.05, 0.1)
    p, q = both_probabilities(model, heads, source.images)
    expected = {
        "source/nll": plain_hard_loss(p, source.labels, weights, 0.8),
        "source/aux": 0.25 * plain_hard_loss(q, source.labels, weights, 0.8),
        "target/memory": torch.tensor(0.0),
        "pseudo/rectified": torch.tensor(0.0),
    }
    assert_losses(losses, expected)
    for name in ("source/nll", "source/aux"):
        assert_close(all_gradients(losses[name], model, heads), all_gradients(expected[name], model, heads))


# ---- Stage I: memory regularisation


def test_memory_term_starts_late_in_stage_one() -> None:
    model, heads = two_heads()
    assert due_epochs(heads) == [MEMORY_EPOCH, STAGE_TWO_EPOCH]
    found = []
    for epoch in range(10):
        if heads.is_due(at_epoch(epoch)):
            refresh(heads, model, epoch)
        found.append(seg_uncertainty(model, map_batch(), heads)["target/memory"].item() > 0)
    assert found == [epoch in (3, 4) for epoch in range(10)]


def test_memory_term_is_the_divergence_of_both_heads_from_their_detached_fusion() -> None:
    model, heads = two_heads(MEMORY_EPOCH)
    found = seg_uncertainty(model, map_batch(), heads, memory=0.3, aux=0.25)["target/memory"]
    main, aux = (upsample(z).clamp(max=10) for z in both_logits(model, heads, TARGET.images))
    mean = (main + 0.25 * aux).softmax(1).detach()
    expected = 0.3 * (kl(mean, main.softmax(1)) + kl(mean, aux.softmax(1)))[OPEN].mean()
    assert_close(found, expected)
    assert_close(all_gradients(found, model, heads), all_gradients(expected, model, heads))


# ---- Stage II: rectified pseudo-labels


def fused_pseudo_labels(heads: TwoHeads, aux: float) -> Tensor:
    """Sum of the fused predictions for the image, its mirror image and both at 1.25 times the size."""
    total = torch.zeros(2, CLASSES, *TARGET.images.shape[2:])
    for size in (SIZE, (15, 20)):
        images = F.interpolate(TARGET.images, size, mode="bilinear", align_corners=True)
        for mirrored_dims in ([], [3]):
            first = heads.frozen_model(images.flip(mirrored_dims))
            second, _ = heads.frozen_aux.model([features_of(first)])
            fused = (first.z.clamp(max=10) + aux * second.clamp(max=10)).softmax(1)
            total += upsample(fused.flip(mirrored_dims))
    return total.argmax(1)


@pytest.mark.parametrize("max_weight", [7.0, 1.0])
def test_stage_two_weights_pseudo_labels_by_the_disagreement_of_each_head(max_weight: float) -> None:
    model, heads = two_heads(MEMORY_EPOCH, STAGE_TWO_EPOCH, max_weight=max_weight, small=0.3)
    losses = seg_uncertainty(model, map_batch(), heads, aux=0.4, rectified=0.8)
    predicted = fused_pseudo_labels(heads, 0.4)
    (weights,) = plain_weights([torch.where(OPEN, predicted, VOID)], max_weight, 0.3, 0.1)
    assert (len(set(weights)) > 1) == (max_weight > 1)
    class_weight = torch.tensor(weights)[predicted]
    p, q = both_probabilities(model, heads, TARGET.images)
    main = class_weight * nll(p, predicted) * torch.exp(-kl(q, p)) + kl(q, p)
    aux = class_weight * nll(q, predicted) * torch.exp(-kl(p, q)) + kl(p, q)
    expected = 0.8 * (main + 0.4 * aux)[OPEN].mean()
    found = losses["pseudo/rectified"]
    assert_close(found, expected)
    assert_close(all_gradients(found, model, heads), all_gradients(expected, model, heads))
    for name in ("target/memory", "source/nll", "source/aux"):
        assert losses[name] == 0
    frozen = (*heads.frozen_model.parameters(), *heads.frozen_aux.parameters())
    assert not any(parameter.requires_grad for parameter in frozen)


def test_class_balance_of_pseudo_labels_starts_with_stage_two() -> None:
    model, heads = two_heads()
    absent = LabelledImages(SOURCE.images, torch.zeros_like(SOURCE.labels))
    batch = Batch(absent, None, None, TARGET, has_target_labels=False)
    seg_uncertainty(model, batch, heads)
    assert heads.source_balance.rarity.tolist() == pytest.approx([1.0, 1.6, 1.6, 1.6])
    heads.pseudo_balance.rarity.fill_(3.0)
    refresh(heads, model, STAGE_TWO_EPOCH)
    assert heads.pseudo_balance.rarity.tolist() == [1.0] * CLASSES


# ---- Second classifier


@pytest.mark.parametrize("name", ["deeplab_v2", "deeplab_v3plus"])
def test_second_classifier_reads_the_stage_before_the_last(name: str) -> None:
    torch.manual_seed(0)
    network = MODELS[name].build(classes=CLASSES, channels=3, backbone="resnet18", pretrained=False).eval()
    model = EvidentialModel(network, "exp_at_most_10")
    before = model(SOURCE.images)
    width = features_of(before).shape[1]
    heads = TwoHeads(AuxiliaryContext(model, CLASSES, width, 6, per_pixel=True), hidden=4)
    perturb(heads.aux)
    heads.eval()
    captured: list[Tensor] = []
    network.get_submodule("backbone.layer3").register_forward_hook(lambda *call: captured.append(call[-1]))
    output = model(SOURCE.images)
    torch.testing.assert_close(output.z, before.z, rtol=0, atol=0)
    state = heads.aux.state_dict()
    expected = torch.zeros(())
    for i, rate in enumerate((6, 12, 18, 24)):
        weight, bias = state[f"branches.{i}.weight"], state[f"branches.{i}.bias"]
        expected = expected + F.conv2d(captured[0], weight, bias, padding=rate, dilation=rate)
    assert captured[0].shape[1] == 256
    assert_close(heads.aux_output(output).z, expected)
    first, second = split_output(output, [1, 1])
    assert_close(torch.cat([heads.aux_output(part).z for part in (first, second)]), expected)
    losses = seg_uncertainty(model, map_batch(), heads)  # grids of both heads differ in v3+
    assert torch.isfinite(torch.stack(list(losses.values()))).all()


# ---- Labels of the target, adversary, parameters


def test_both_heads_learn_from_target_labels_in_both_stages() -> None:
    for epochs in ((), (STAGE_TWO_EPOCH,)):
        model, heads = two_heads(*epochs)
        batch = Batch(SOURCE, SOURCE, None)
        losses = seg_uncertainty(model, batch, heads)
        assert losses.keys() == {"source/nll", "labelled/nll", "source/aux", "labelled/aux"}
        assert_losses(losses, {"labelled/nll": softmax(model, batch)["labelled/nll"]})
        assert (losses["source/nll"] > 0) == (not epochs)


@pytest.mark.parametrize("epochs", [(), (STAGE_TWO_EPOCH,)])
def test_each_head_has_an_adversary_that_trains_it_only_in_stage_one(epochs: tuple[int, ...]) -> None:
    model, heads = two_heads(*epochs)
    losses = seg_uncertainty(model, map_batch(), heads, aux=0.25, domain=0.5, aux_domain=0.1)
    source_main, source_aux = (z.clamp(max=10) for z in both_logits(model, heads, SOURCE.images))
    source = (source_main + 0.25 * source_aux).softmax(1).detach()
    targets = both_logits(model, heads, TARGET.images)
    discriminators = heads.discriminator, heads.aux_discriminator
    for name, z, discriminator, weight in zip(
        ("least_squares", "aux"), targets, discriminators, (0.5, 0.1), strict=True
    ):
        found, in_stage_one = losses[f"domain/{name}"], float(not epochs)
        t = discriminator(z.clamp(max=10).softmax(1))
        own = in_stage_one * (((discriminator(source) - 1) ** 2).mean() + (t**2).mean())
        generator = in_stage_one * weight * 2 * ((t - 1) ** 2).mean()
        assert_close(found, own + generator)
        assert_close(gradients(found, discriminator), gradients(own, discriminator))
        assert_close(all_gradients(found, model, heads), all_gradients(generator, model, heads))


def test_published_weights_are_the_defaults() -> None:
    defaults = {
        name: parameter.default
        for function in (seg_uncertainty, TwoHeads)
        for name, parameter in signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    expected = {
        **{"aux": 0.5, "hard": 0.8, "memory": 0.1, "domain": 0.001, "aux_domain": 0.0002, "rectified": 1.0},
        **{"warmup": 0.5, "memory_start": 15 / 25, "dropout": 0.1, "max_weight": 7.0, "rarity_rate": 0.1},
        **{"scales": (1.0, 1.25), "small": 64**2 / (1024 * 512)},
    }
    assert {name: defaults[name] for name in expected} == expected
