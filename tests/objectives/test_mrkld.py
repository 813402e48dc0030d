"""MRKLD against plain references: thresholds by sorting, losses on full-resolution maps."""

import math

import pytest
import torch
from tiny_maps import (
    CLASSES,
    SIZE,
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
from ducats.objectives import softmax
from ducats.objectives.self_training.mrkld import mrkld
from ducats.objectives.self_training.round_schedule import starting_round
from ducats.objectives.self_training.teacher import CERTAINTY_BIN_WIDTH as BIN
from ducats.objectives.self_training.teacher import Teacher, certainty_histogram, log_thresholds


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
    batch = map_batch()
    assert batch.target is not None
    images, labels = batch.target
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
def test_invalid_parameters_raise(params: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        Teacher(auxiliary_context(TinySegmenter()), **params)  # type: ignore[arg-type]
