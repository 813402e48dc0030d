"""Query of SDM: gradients and scores against automatic differentiation through the last layer."""

import pytest
import torch
from query_pools import image_table, make_context
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.queries.sdm import loss_gradient, margin_gradient, sdm
from ducats.acquisition.samples import QueryContext, top_k
from ducats.utils.errors import UserError

CLASSES, WIDTH = 5, 7


def layer(seed: int = 0, count: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Features, and the weights and bias of a last layer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((count, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    features, head, bias = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return features, head, bias


def sdm_context(z: Tensor, head: Tensor | None, budget: int) -> QueryContext:
    return make_context(image_table(len(z), {"z": z}), budget, head=head)


def loss(features: Tensor, head: Tensor, bias: Tensor, label: Tensor) -> Tensor:
    """Training loss, summed over samples."""
    z = features @ head.T + bias
    unit = F.normalize(z, dim=1)
    terms = F.cross_entropy(z, label, reduction="none") + F.multi_margin_loss(unit, label, reduction="none")
    return (terms - unit.gather(1, label[:, None]).squeeze(1)).sum()


def reference(features: Tensor, head: Tensor, bias: Tensor, weight: float) -> Tensor:
    """Scores sample by sample, all gradients by differentiation through the layer."""
    scores = []
    for h in features:
        h = h.clone().requires_grad_()
        p, order = (head @ h + bias).softmax(0).sort(descending=True)
        first, second = p[0].item(), p[1].item()
        (q,) = torch.autograd.grad(p[0] - p[1], h)
        q = q - first * second * (head[order[0]] - head[order[1]])  # without the cross terms of the two
        step = torch.zeros_like(q)
        for probability, label in ((first, order[0]), (second, order[1])):
            step -= probability * torch.autograd.grad(loss(h[None], head, bias, label[None]), h)[0]
        cosine = float(q @ step / q.norm() / step.norm())
        scores.append(first - second - weight * cosine)
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("weight", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_picks_are_the_smallest_scores(weight: float, scale: float) -> None:
    features, head, bias = layer()
    features = features * scale
    given = sdm_context(features @ head.T + bias, head, 20)
    expected = top_k(-reference(features, head, bias, weight), 20, given.candidates)
    assert torch.equal(sdm(given, weight=weight), expected)


def test_gradient_of_the_margin_is_the_papers() -> None:
    z = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    # p1 (1 - p1) of the second class, -p2 (1 - p2) of the third, -(p1 - p2) p of the first
    torch.testing.assert_close(margin_gradient(z), torch.tensor([[-0.04, 0.25, -0.21]], dtype=torch.float64))


def test_zero_logits_and_exact_ties() -> None:
    features, head, bias = layer()
    z = features @ head.T + bias
    z[3] = 0
    z[10:20] = z[9]
    picks = sdm(sdm_context(z, head, len(z)))
    assert picks.unique().tolist() == list(range(len(z)))
    assert loss_gradient(torch.zeros(1, 4), torch.tensor([[2]])).tolist() == [[0.25, 0.25, -0.75, 0.25]]
    duplicates = [pick for pick in picks.tolist() if 9 <= pick < 20]
    assert duplicates == sorted(duplicates)


def test_a_model_without_a_linear_last_layer_raises() -> None:
    with pytest.raises(UserError, match=r"linear last layer.*model.name"):
        sdm(sdm_context(torch.zeros(3, 2), None, 1))
