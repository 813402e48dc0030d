"""Objective of SDM: cross-entropy, hinge and true logit, computed class by class."""

import pytest
import torch
import torch.nn.functional as F
from tiny_network import TinyNetwork, flatten_maps, image_batch, map_batch
from torch import Tensor

from ducats.models.output import Output
from ducats.objectives.batch import Batch, LabelledImages
from ducats.objectives.sdm import sdm


def by_hand(z: Tensor, labels: Tensor) -> dict[str, Tensor]:
    hinge, logit = [], []
    for row, label in zip(z, labels.tolist(), strict=True):
        unit = row / row.square().sum().sqrt()
        others = [c for c in range(len(row)) if c != label]
        hinge.append(sum(torch.relu(1 - (unit[label] - unit[c])) for c in others) / len(row))
        logit.append(-unit[label])
    means = (torch.stack([torch.as_tensor(v) for v in values]).mean() for values in (hinge, logit))
    return dict(zip(("margin", "logit"), means, strict=True)) | {"nll": F.cross_entropy(z, labels)}


def test_losses_by_hand() -> None:
    model, batch = TinyNetwork(), image_batch()
    losses = sdm(model, batch, target=3.0)
    assert batch.labelled is not None
    source = by_hand(model(batch.source.images).z[:5], batch.source.labels[:5])
    labelled = by_hand(model(batch.labelled.images).z, batch.labelled.labels)
    assert losses.keys() == {f"{stream}/{name}" for stream in ("source", "labelled") for name in source}
    for name in source:
        torch.testing.assert_close(losses[f"source/{name}"], source[name])
        torch.testing.assert_close(losses[f"labelled/{name}"], 3 * labelled[name])


def test_pixels_count_as_samples() -> None:
    model, batch = TinyNetwork(pixels=True), map_batch()
    losses = sdm(model, batch)
    for stream, part in (("source", batch.source), ("labelled", batch.target)):
        assert part is not None
        labels = part.labels.flatten().long()
        expected = by_hand(flatten_maps(model(part.images).z)[labels >= 0], labels[labels >= 0])
        for name, value in expected.items():
            torch.testing.assert_close(losses[f"{stream}/{name}"], value)


@pytest.mark.parametrize("gone", ["margin", "logit"])
def test_each_term_can_be_disabled(gone: str) -> None:
    losses = sdm(TinyNetwork(), image_batch(), **{gone: 0.0})
    assert losses.keys() & {f"source/{gone}", f"labelled/{gone}"} == set()
    assert len(losses) == 4


def test_zero_logits_have_a_finite_gradient() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    losses = sdm(
        lambda images: Output(images, None), Batch(LabelledImages(z, torch.tensor([0, 1])), None, None)
    )
    torch.stack(list(losses.values())).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert float(losses["source/margin"].detach()) == pytest.approx(2 / 3)
