"""Objective of SDM: cross-entropy, hinge and true logit, computed class by class."""

import pytest
import torch
import torch.nn.functional as F
from tiny_network import LABELLED, SOURCE, TinyNetwork, image_batch
from torch import Tensor

from ducats.models.output import Output
from ducats.objectives.batch import Batch, LabelledImages
from ducats.objectives.sdm import sdm


def by_hand(z: Tensor, labels: Tensor) -> dict[str, Tensor]:
    hinge, logit = [], []
    for row, label in zip(z, labels.tolist(), strict=True):
        unit = row / row.square().sum().sqrt()
        violations = [torch.relu(1 - (unit[label] - unit[c])) for c in range(len(row)) if c != label]
        hinge.append(torch.stack(violations).sum() / len(row))
        logit.append(-unit[label])
    nll = F.cross_entropy(z, labels)
    return {"nll": nll, "margin": torch.stack(hinge).mean(), "logit": torch.stack(logit).mean()}


def test_losses_by_hand() -> None:
    model = TinyNetwork()
    source = by_hand(model(SOURCE.images).z[:5], SOURCE.labels[:5])  # the sixth has no label
    labelled = by_hand(model(LABELLED.images).z, LABELLED.labels)
    expected = {f"source/{name}": loss for name, loss in source.items()}
    expected |= {f"labelled/{name}": 3 * loss for name, loss in labelled.items()}
    torch.testing.assert_close(sdm(model, image_batch(), target=3.0), expected)


@pytest.mark.parametrize("gone", ["margin", "logit"])
def test_each_term_can_be_disabled(gone: str) -> None:
    full = sdm(TinyNetwork(), image_batch())
    expected = {name: loss for name, loss in full.items() if not name.endswith(gone)}
    torch.testing.assert_close(sdm(TinyNetwork(), image_batch(), **{gone: 0.0}), expected)


def test_zero_logits_have_a_finite_gradient() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    batch = Batch(LabelledImages(z, torch.tensor([0, 1])), None, None)
    losses = sdm(lambda images: Output(images, None), batch)
    (gradient,) = torch.autograd.grad(torch.stack(list(losses.values())).sum(), z)
    assert gradient.isfinite().all()
    assert float(losses["source/margin"].detach()) == pytest.approx(2 / 3)
