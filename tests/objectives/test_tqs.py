"""Objective of TQS: softmax, and two probes."""

import torch
from torch import nn

from ducats.objectives import Batch, Beside, Labelled, Remembered, softmax
from ducats.objectives.tqs import Observers, tqs
from ducats.rows import Output


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 4), nn.Linear(4, 2)

    def forward(self, images: torch.Tensor) -> Output:
        features = self.body(images.flatten(1))
        return Output(self.head(features), features)


def made() -> tuple[Net, Observers, Batch]:
    torch.manual_seed(0)
    model, shown = Net(), torch.rand(3, 10, 3, 2, 2)
    labels = torch.arange(10) % 2
    batch = Batch(Labelled(shown[0], labels), Labelled(shown[1], labels), shown[2] + 1)
    return model, Observers(Beside(model, 2, 4, 10, pixels=False)), batch


def test_losses_of_the_model_are_softmax() -> None:
    model, observers, batch = made()
    losses = tqs(Remembered(model), batch, observers, source=0.5)
    for name, value in softmax(model, batch, source=0.5).items():
        assert torch.equal(losses.pop(name), value)
    assert losses.keys() == {"witness/committee", "witness/domain"}


def test_probes_learn_without_affecting_the_model() -> None:
    model, observers, batch = made()
    optimiser = torch.optim.SGD(observers.parameters(), lr=0.3)
    start = [p.detach().clone() for p in observers.parameters()]
    for _ in range(80):
        losses = tqs(Remembered(model), batch, observers)
        optimiser.zero_grad()
        (losses["witness/committee"] + losses["witness/domain"]).backward()
        optimiser.step()
    assert all(p.grad is None for p in model.parameters())
    assert all(not torch.equal(p, first) for p, first in zip(observers.parameters(), start, strict=True))
    assert batch.unlabelled is not None
    ours, theirs = (observers.tell(model(some))["domain"] for some in (batch.source.images, batch.unlabelled))
    assert ours.mean() > theirs.mean() + 0.3
    assert observers.tell(model(batch.unlabelled))["committee"].shape == (10, 5, 2)
    assert set(observers.tells) == {"committee", "domain"}


def test_without_unlabelled_images_only_the_committee_learns() -> None:
    model, observers, batch = made()
    losses = tqs(Remembered(model), Batch(batch.source, None, None), observers)
    assert losses.keys() == {"source/nll", "witness/committee"}
