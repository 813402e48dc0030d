"""Seg-Uncertainty against its formula on full-resolution maps."""

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
from ducats.objectives import AuxiliaryContext, softmax
from ducats.objectives.self_training.seg_uncertainty import TwoHeads, seg_uncertainty
from ducats.utils.errors import UserError


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
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
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
