"""Temperature scaling against a general optimiser, and evaluation at a temperature."""

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from ducats.data.domain import VOID
from ducats.data.streets import streets
from ducats.data.toy import toy
from ducats.evaluation.evaluate import TemperedEvaluation, evaluate, evaluate_segmentation
from ducats.evaluation.metrics import compute_metrics, tally_batch
from ducats.evaluation.temperature_scaling import TEMPERATURE_BOUNDS, optimal_temperature
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.utils.randomness import global_seed


def random_logits_and_labels(count: int, classes: int, sharpness: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return logits, and labels sampled from softmax(sharpness * z)."""
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(count, classes, generator=generator)
    return z, torch.multinomial((sharpness * z).softmax(1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize(("sharpness", "seed"), [(0.3, 0), (1.0, 1), (2.5, 2), (0.1, 3)])
def test_temperature_maximises_the_likelihood(sharpness: float, seed: int) -> None:
    z, labels = random_logits_and_labels(400, 5, sharpness, seed)

    def nll(log_t: float) -> float:
        return float(F.cross_entropy(z.double() / math.exp(log_t), labels))

    expected = minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    found = optimal_temperature(z, labels)
    assert found is not None
    assert math.log(found) == pytest.approx(expected.x, abs=1e-6)
    assert found == pytest.approx(1 / sharpness, rel=0.35)  # the sharpness that labels were sampled with


def test_unbounded_optimum_is_clamped() -> None:
    z = torch.eye(4).repeat(2, 1)
    right, wrong = torch.arange(4).repeat(2), (torch.arange(4) + 1).repeat(2) % 4
    assert optimal_temperature(z, right) == pytest.approx(TEMPERATURE_BOUNDS[0])
    assert optimal_temperature(z, wrong) == pytest.approx(TEMPERATURE_BOUNDS[1])


def test_too_few_labels_give_no_temperature() -> None:
    z, labels = random_logits_and_labels(9, 3, 1.0, 0)
    labels = torch.tensor([0, 1, 0, 1, 2, 0, 1, 2, 2])
    assert optimal_temperature(z, labels) is not None
    assert optimal_temperature(z[:4], labels[:4]) is None  # four labels
    assert optimal_temperature(z, labels.masked_fill(torch.arange(9) > 3, VOID)) is None
    assert optimal_temperature(z, torch.zeros_like(labels)) is None  # one class
    void = torch.cat([labels, torch.tensor([VOID])])
    assert optimal_temperature(torch.cat([z, 99 * z[:1]]), void) == optimal_temperature(z, labels)


def test_images_are_evaluated_at_both_temperatures_in_one_pass() -> None:
    test: Any = toy(n_pool=5).test
    with global_seed(0, "model"):
        model = EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))
    cold = TemperedEvaluation(0.25)
    predictor = Predictor(model=model, view=View(), batch_size=7, fabric=make_fabric("cpu"))
    tally = evaluate(predictor, test, tempered=cold)
    plain = evaluate(predictor, test)
    assert compute_metrics(tally) == compute_metrics(plain)
    with torch.no_grad():
        z = model(test.images.pixels[:].float() / 255).z.double()
    expected = compute_metrics(tally_batch((z / 0.25).log_softmax(1), test.labels[:]))
    assert cold.tally is not None
    assert compute_metrics(cold.tally) == pytest.approx(expected, rel=1e-6)
    assert compute_metrics(cold.tally)["nll"] != pytest.approx(compute_metrics(tally)["nll"], rel=1e-3)


@pytest.mark.parametrize("flip", [False, True])
def test_temperature_is_applied_before_flip_averaging(flip: bool) -> None:
    test: Any = streets(n_source=1, n_pool=1, n_test=3, height=16, width=32).test
    with global_seed(0, "model"):
        model = EvidentialModel(small_fcn(classes=len(test.classes), channels=3, width=8))
    warm = TemperedEvaluation(3.0)
    predictor = Predictor(model=model, view=View(), batch_size=2, fabric=make_fabric("cpu"))
    evaluate_segmentation(predictor, test, resolution="network", average_flipped=flip, tempered=warm)
    pixels = test.images.pixels[:].float() / 255
    model.eval()

    def probability(images: Tensor) -> Tensor:
        with torch.no_grad():
            z = F.interpolate(model(images).z, (16, 32), mode="bilinear", align_corners=True)
        return (z.double() / 3).softmax(1)

    p = probability(pixels)
    p = (p + probability(pixels.flip(-1)).flip(-1)) / 2 if flip else p
    assert warm.tally is not None
    found, expected = (
        compute_metrics(warm.tally),
        compute_metrics(tally_batch(p.log(), test.labels[:].long())),
    )
    assert {name: found[name] for name in ("nll", "brier", "ece")} == pytest.approx(
        {name: expected[name] for name in ("nll", "brier", "ece")}, rel=1e-4
    )
