"""FixMatch: threshold, loss, and its place in DUC."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives import OBJECTIVES, Batch, CachedForward, LabelledImages, duc
from ducats.objectives.fixmatch import fixmatch_loss


def test_mean_over_confident_images() -> None:
    weak = torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.7, 0.2], [0.02, 0.02, 0.96]]).log()
    strong = torch.tensor([[1.0, 2.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    by_hand = [math.log(math.e + math.e**2 + 1) - 1, math.log(2 + math.e**3) - 3]
    assert float(fixmatch_loss(weak, strong, 0.8)) == pytest.approx(sum(by_hand) / 2, rel=1e-6)
    assert float(fixmatch_loss(weak, strong, 0.95)) == pytest.approx(by_hand[1], rel=1e-6)


def test_threshold_is_exclusive() -> None:
    weak = torch.zeros(1, 2, dtype=torch.float64)  # a probability of exactly one half
    strong = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    loss = fixmatch_loss(weak, strong, 0.5)
    assert (loss.item(), torch.autograd.grad(loss, strong)[0].tolist()) == (0.0, [[0.0, 0.0]])
    loss = fixmatch_loss(weak, strong, math.nextafter(0.5, 0.0))
    assert loss.item() == pytest.approx(math.log(1 + math.e))


def test_no_gradient_through_the_weak_view() -> None:
    weak, strong = (torch.tensor([row], requires_grad=True) for row in ([9.0, 0.0], [0.0, 1.0]))
    loss = fixmatch_loss(weak, strong, 0.8)
    for_weak, for_strong = torch.autograd.grad(loss, (weak, strong), allow_unused=True)
    assert for_weak is None
    assert for_strong[0, 0] < 0 < for_strong[0, 1]


SOURCE, WEAK, STRONG = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
BATCH = Batch(LabelledImages(SOURCE, torch.arange(6) % 4), None, 3 * WEAK, strong=STRONG)


def test_duc_adds_it_to_its_other_losses() -> None:
    def as_logits(images: Tensor) -> Output:
        return Output(images, None)

    expected = 0.5 * fixmatch_loss(3 * WEAK, STRONG, 0.6)
    assert expected > 0
    found = duc(as_logits, BATCH, fixmatch=0.5, tau=0.6)
    torch.testing.assert_close(found, duc(as_logits, BATCH) | {"unlabelled/fixmatch": expected})
    assert "unlabelled/fixmatch" not in duc(as_logits, replace(BATCH, unlabelled=None), fixmatch=1.0)


class NormalisedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, images: Tensor) -> Output:
        return Output(self.norm(images), None)


def test_strong_views_do_not_change_running_statistics() -> None:
    plain, model = NormalisedModel().train(), NormalisedModel().train()
    duc(CachedForward(plain), BATCH)
    moved = duc(CachedForward(model), replace(BATCH, strong=STRONG + 100), fixmatch=1.0, tau=0.3)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert model.norm.track_running_stats
    unmoved = duc(CachedForward(NormalisedModel().train()), BATCH, fixmatch=1.0, tau=0.3)
    torch.testing.assert_close(moved, unmoved, rtol=1e-4, atol=1e-4)


def test_strong_view_only_if_needed() -> None:
    spec = OBJECTIVES["duc"]
    assert not spec.needs_strong_view()
    assert not spec.bind({"fixmatch": 0.0, "tau": 0.9}).needs_strong_view()
    assert spec.bind({"fixmatch": 1.0}).needs_strong_view()
    assert {"fixmatch", "tau", "propagation_rate", "beta"} <= spec.signature.parameters.keys()
    assert "auxiliary" not in spec.signature.parameters
