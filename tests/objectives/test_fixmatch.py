"""FixMatch: threshold, loss and unsupported cases."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives import OBJECTIVES, Batch, CachedForward, LabelledImages, ObjectiveSpec, duc
from ducats.objectives.fixmatch import fixmatch_loss
from ducats.utils.errors import UserError


def logits(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_mean_over_confident_images() -> None:
    weak = torch.tensor([logits(0.9, 0.05, 0.05), logits(0.1, 0.7, 0.2), logits(0.02, 0.02, 0.96)])
    strong = torch.tensor([[1.0, 2.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    by_hand = [math.log(math.e + math.e**2 + 1) - 1, math.log(2 + math.e**3) - 3]
    assert float(fixmatch_loss(weak, strong, 0.8)) == pytest.approx(sum(by_hand) / 2, rel=1e-6)
    assert float(fixmatch_loss(weak, strong, 0.95)) == pytest.approx(by_hand[1], rel=1e-6)


def test_threshold_is_exclusive() -> None:
    weak = torch.zeros(1, 2, dtype=torch.float64)  # a probability of exactly one half
    strong = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert float(fixmatch_loss(weak, strong, 0.5)) == 0.0
    assert float(fixmatch_loss(weak, strong, math.nextafter(0.5, 0.0))) == pytest.approx(math.log(1 + math.e))


def test_no_confident_image_gives_zero_loss_and_gradient() -> None:
    strong = torch.randn(4, 3, requires_grad=True, generator=torch.Generator().manual_seed(0))
    loss = fixmatch_loss(torch.zeros(4, 3), strong, 0.8)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert strong.grad is not None
    assert not strong.grad.any()


def test_no_gradient_through_the_weak_view() -> None:
    weak = torch.tensor([[9.0, 0.0]], requires_grad=True)
    strong = torch.tensor([[0.0, 1.0]], requires_grad=True)
    fixmatch_loss(weak, strong, 0.8).backward()
    assert weak.grad is None
    assert strong.grad is not None
    assert strong.grad[0, 0] < 0 < strong.grad[0, 1]


def as_logits(images: Tensor) -> Output:
    return Output(images, None)


@pytest.fixture
def batch() -> Batch:
    z = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    return Batch(LabelledImages(z[0], torch.arange(6) % 4), None, 3 * z[1], strong=z[2])


def test_duc_adds_it_to_its_other_losses(batch: Batch) -> None:
    assert batch.unlabelled is not None
    assert batch.strong is not None
    plain, with_fixmatch = duc(as_logits, batch), duc(as_logits, batch, fixmatch=0.5, tau=0.6)
    expected = 0.5 * fixmatch_loss(batch.unlabelled, batch.strong, 0.6)
    assert expected > 0
    assert torch.equal(with_fixmatch.pop("unlabelled/fixmatch"), expected)
    assert with_fixmatch.keys() == plain.keys()
    assert all(torch.equal(with_fixmatch[name], plain[name]) for name in plain)


class NormalisedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, images: Tensor) -> Output:
        return Output(self.norm(images), None)


def test_strong_views_do_not_change_running_statistics(batch: Batch) -> None:
    assert batch.strong is not None
    plain, with_fixmatch = NormalisedModel().train(), NormalisedModel().train()
    duc(CachedForward(plain), batch)
    moved = replace(batch, strong=batch.strong + 100)
    losses = duc(CachedForward(with_fixmatch), moved, fixmatch=1.0, tau=0.3)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), with_fixmatch.buffers(), strict=True))
    assert with_fixmatch.norm.track_running_stats
    unmoved = duc(CachedForward(NormalisedModel().train()), batch, fixmatch=1.0, tau=0.3)
    name = "unlabelled/fixmatch"
    torch.testing.assert_close(losses[name], unmoved[name], rtol=1e-4, atol=1e-4)


def test_strong_view_only_if_needed() -> None:
    spec = OBJECTIVES["duc"]
    assert isinstance(spec, ObjectiveSpec)
    assert not spec.needs_strong_view()
    assert not spec.bind({"fixmatch": 0.0, "tau": 0.9}).needs_strong_view()
    assert spec.bind({"fixmatch": 1.0}).needs_strong_view()
    assert {"fixmatch", "tau", "certainty_rate", "beta"} <= spec.signature.parameters.keys()
    assert "auxiliary" not in spec.signature.parameters


def test_unsupported_cases(batch: Batch) -> None:
    with pytest.raises(UserError, match="strong view"):
        duc(as_logits, Batch(batch.source, None, batch.unlabelled), fixmatch=1.0)
    assert "unlabelled/fixmatch" not in duc(as_logits, Batch(batch.source, None, None), fixmatch=1.0)
    maps = LabelledImages(torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 3, dtype=torch.int8))
    with pytest.raises(UserError, match="whole images only"):
        duc(lambda images: Output(images, None, (2, 3)), Batch(maps, None, None, maps), fixmatch=1.0)
