"""Objective of TQS: softmax, and two probes."""

import torch
from torch import nn

from ducats.models.output import Output
from ducats.objectives import AuxiliaryContext, Batch, CachedForward, LabelledImages, softmax
from ducats.objectives.tqs import TqsProbes, tqs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 4), nn.Linear(4, 2)

    def forward(self, images: torch.Tensor) -> Output:
        features = self.body(images.flatten(1))
        return Output(self.head(features), features)


def make_tqs() -> tuple[Net, TqsProbes, Batch]:
    torch.manual_seed(0)
    model, images = Net(), torch.rand(3, 10, 3, 2, 2)
    labels = torch.arange(10) % 2
    batch = Batch(LabelledImages(images[0], labels), LabelledImages(images[1], labels), images[2] + 1)
    return model, TqsProbes(AuxiliaryContext(model, 2, 4, 10, per_pixel=False)), batch


def test_losses_of_the_model_are_softmax() -> None:
    model, probes, batch = make_tqs()
    losses = tqs(CachedForward(model), batch, probes, source=0.5)
    for name, value in softmax(model, batch, source=0.5).items():
        assert torch.equal(losses.pop(name), value)
    assert losses.keys() == {"probe/committee", "probe/domain"}


def test_probes_learn_without_affecting_the_model() -> None:
    model, probes, batch = make_tqs()
    optimiser = torch.optim.SGD(probes.parameters(), lr=0.3)
    start = [p.detach().clone() for p in probes.parameters()]
    for _ in range(80):
        losses = tqs(CachedForward(model), batch, probes)
        optimiser.zero_grad()
        (losses["probe/committee"] + losses["probe/domain"]).backward()
        optimiser.step()
    assert all(p.grad is None for p in model.parameters())
    assert all(not torch.equal(p, first) for p, first in zip(probes.parameters(), start, strict=True))
    assert batch.unlabelled is not None
    source_domain, target_domain = (
        probes.extra_columns(model(some))["domain"] for some in (batch.source.images, batch.unlabelled)
    )
    assert source_domain.mean() > target_domain.mean() + 0.3
    assert probes.extra_columns(model(batch.unlabelled))["committee"].shape == (10, 5, 2)
    assert set(probes.provides) == {"committee", "domain"}


def test_without_unlabelled_images_only_the_committee_learns() -> None:
    model, probes, batch = make_tqs()
    losses = tqs(CachedForward(model), Batch(batch.source, None, None), probes)
    assert losses.keys() == {"source/nll", "probe/committee"}
