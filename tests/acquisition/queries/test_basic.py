"""Queries on columns pick the same images as formulas on log alpha."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ducats import dirichlet
from ducats.acquisition.criteria import compute_columns
from ducats.acquisition.queries import QUERIES
from ducats.acquisition.samples import QueryContext, SampleTable, top_k


def negative_margin(z: Tensor) -> Tensor:
    top = dirichlet.expected_probability(z).topk(2, dim=1).values
    return top[:, 1] - top[:, 0]


def published_u_dis(z: Tensor) -> Tensor:
    probability = dirichlet.expected_probability(z)
    return -(probability * (probability + 1e-7).log()).sum(1) - dirichlet.data_uncertainty(z)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "entropy": dirichlet.entropy,
    "margin": negative_margin,
    "least_confident": lambda z: -dirichlet.expected_probability(z).amax(dim=1),
    "u_dis": dirichlet.log_distribution_uncertainty,
    "u_data": dirichlet.data_uncertainty,
}


def pools() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(300, 7, generator=generator)
    return [z, z * 4 + 20, (z * 2).round(), z * 0, z[:, :2] * 30]


@pytest.mark.parametrize("z", pools(), ids=["plain", "sure", "ties", "nothing", "two classes"])
@pytest.mark.parametrize("name", SCORES)
def test_one_score(name: str, z: Tensor) -> None:
    indices = torch.arange(len(z)).flip(0)
    locations = SampleTable(indices, torch.zeros_like(indices), {})
    samples = SampleTable(indices, torch.zeros_like(indices), compute_columns(z, None, QUERIES[name].needs))
    picks = QUERIES[name].fn(QueryContext(samples, samples[indices[:0]], 40, torch.Generator()))
    assert torch.equal(picks, top_k(SCORES[name](z), 40, locations))


@pytest.mark.parametrize("z", pools(), ids=["plain", "sure", "ties", "nothing", "two classes"])
@pytest.mark.parametrize("epsilon", [None, 1e-7])
@pytest.mark.parametrize("order", ["dis_data", "data_dis"])
def test_two_rounds(z: Tensor, epsilon: float | None, order: str) -> None:
    indices = torch.arange(len(z)).flip(0)
    locations = SampleTable(indices, torch.zeros_like(indices), {})
    distribution = dirichlet.log_distribution_uncertainty if epsilon is None else published_u_dis
    first, second = distribution, dirichlet.data_uncertainty
    if order == "data_dis":
        first, second = second, first
    passed = top_k(first(z), math.ceil(2.5 * 40), locations)
    expected = passed[top_k(second(z[passed]), 40, locations[passed])]

    spec = QUERIES["duc"].bind({"kappa": 2.5, "epsilon": epsilon, "order": order})
    samples = SampleTable(indices, torch.zeros_like(indices), compute_columns(z, None, spec.needs))
    assert torch.equal(spec.fn(QueryContext(samples, samples[indices[:0]], 40, torch.Generator())), expected)
