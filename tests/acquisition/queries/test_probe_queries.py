"""Picks of EADA, EUQ and the queries that use probes (AADA, WAAL, TQS)."""

import math
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from query_pools import normal, select
from torch import Tensor


def test_eada_takes_small_gaps_among_high_free_energies() -> None:
    # z are negative energies. F = -0.64, -5.69, -0.53, -6.00: low if one or two classes fit.
    z = torch.tensor([[0.0, -0.1], [5.0, 5.0], [0.5, -3.0], [6.0, 0.0]])
    assert select("eada", z, 1) == [0]  # of samples 0 and 2
    assert select("eada", z, 1, pool_fraction=1.0) == [1]
    assert select("eada", z, 2) == [0, 2]
    assert select("eada", z, 3, pool_fraction=0.01) == [1, 0, 2]  # at least the budget
    # Labelled samples count: half of six pass, and the third is sample 1.
    assert select("eada", torch.cat([z, torch.tensor([[9.0, 0.0]] * 2)]), 1, labelled=2) == [1]


@pytest.mark.parametrize("kappa", [1.0, 2.5, 10.0])
def test_euq_against_variances_of_the_dirichlet(kappa: float) -> None:
    z = normal(60, 4) * 2
    alpha = z.exp()
    p = alpha / alpha.sum(1, keepdim=True)
    epistemic = torch.distributions.Dirichlet(alpha).variance.mean(1)
    aleatoric = (p * (1 - p)).mean(1) - epistemic
    passed = sorted(range(60), key=lambda i: -epistemic[i].item())[: math.ceil(kappa * 6)]
    expected = sorted(passed, key=lambda i: -aleatoric[i].item())[:6]
    assert select("euq", z, 6, kappa=kappa) == expected


def test_euq_with_entropy_is_duc() -> None:
    z = normal(80, 5) * 3
    assert select("euq", z, 7, kappa=3, uncertainty="entropy") == select("duc", z, 7, kappa=3)
    assert select("euq", z, 7, kappa=3) != select("duc", z, 7, kappa=3)


def test_aada_avoids_division_by_zero() -> None:
    z = torch.tensor([[500.0, 0.0], [0.0, 0.0], [0.0, 0.5], [0.0, 0.0]])  # the first has zero entropy
    assert set(select("aada", z, 2, probes={"domain": torch.tensor([0.0, 0.0, 0.0, 1.0])})) == {1, 2}


def test_aada_samples_uniformly_from_the_top() -> None:
    z, domain = normal(50, 3), torch.rand(50, generator=torch.Generator().manual_seed(1))
    p = z.softmax(1)
    score = (1 - domain) / domain * -(p * p.log()).sum(1)
    top = sorted(range(50), key=lambda i: -score[i].item())[:10]  # 20 % of the pool
    assert set(select("aada", z, 7, probes={"domain": domain})) == set(top[:7])  # at least the budget
    params: dict[str, Any] = {"probes": {"domain": domain}, "pool_fraction": 0.2}
    drawn = [select("aada", z, 3, seed=seed, **params) for seed in range(400)]
    counts = [sum(i in picks for picks in drawn) for i in range(50)]
    assert sum(counts[i] for i in top) == 3 * 400
    assert all(80 < counts[i] < 160 for i in top)  # 120 on average, and a deviation of 9


@pytest.mark.parametrize("weight", [10.0, 0.0])
def test_waal_takes_the_smallest_scores(weight: float) -> None:
    # Probabilities are at least 1e-12: an impossible class does not dominate.
    z, critic = torch.cat([normal(40, 5) * 4, normal(20, 5) * 40]), normal(60, seed=1)
    scores = []
    for row, g in zip(z.tolist(), critic.tolist(), strict=True):
        total = sum(math.exp(v - max(row)) for v in row)
        logs = [math.log(max(math.exp(v - max(row)) / total, 1e-12)) for v in row]
        scores.append(math.sqrt(sum(v**2 for v in logs)) / 2 + sum(map(abs, logs)) / 2 - weight * g)
    picks = select("waal", z, 60, probes={"critic": critic}, weight=weight)
    assert picks == sorted(range(60), key=scores.__getitem__)


def tqs_scores(z: Tensor, domain: Tensor, committee: Tensor, weight: float, sigma: float) -> list[float]:
    scores = []
    for row, d, members in zip(z.softmax(1).tolist(), domain.tolist(), committee.tolist(), strict=True):
        best, second = sorted(row, reverse=True)[:2]
        spread = fmean(stdev(column) for column in zip(*members, strict=True))
        scores.append(spread + 1 - (best - second) + weight * math.exp(-((d - 0.5) ** 2) / (2 * sigma**2)))
    return scores


def tqs_pool() -> tuple[Tensor, dict[str, Tensor]]:
    z, generator = normal(60, 4) * 2, torch.Generator().manual_seed(2)
    domain = torch.rand(60, generator=generator, dtype=torch.float64)
    return z, {"domain": domain, "committee": (normal(60, 5, 4, seed=3) * 2).softmax(2)}


@pytest.mark.parametrize(("weight", "sigma"), [(1.0, 0.25), (3.0, 0.1), (0.0, 0.25)])
def test_tqs_adds_three_scores(weight: float, sigma: float) -> None:
    z, probe_columns = tqs_pool()
    scores = tqs_scores(z, probe_columns["domain"], probe_columns["committee"], weight, sigma)
    picks = select("tqs", z, 9, probes=probe_columns, domainness=weight, sigma=sigma, candidate_factor=1)
    assert set(picks) == set(sorted(range(60), key=lambda i: -scores[i])[:9])


def test_tqs_samples_from_the_expected_number_of_errors() -> None:
    z, probe_columns = tqs_pool()
    scores = tqs_scores(z, probe_columns["domain"], probe_columns["committee"], 1.0, 0.25)
    wrong = 60 - round(sum(max(row) for row in z.softmax(1).tolist()))
    assert 10 < wrong < 30
    picked = {pick for seed in range(300) for pick in select("tqs", z, 2, probes=probe_columns, seed=seed)}
    assert picked == set(sorted(range(60), key=lambda i: -scores[i])[:wrong])


def test_tqs_with_a_confident_model_and_one_member() -> None:
    z = torch.tensor([[60.0, 0.0], [50.0, 0.0], [40.0, 0.0]])
    probe_columns = {"domain": torch.tensor([0.5, 0.0, 0.4]), "committee": torch.full((3, 1, 2), 0.5)}
    assert set(select("tqs", z, 2, probes=probe_columns)) == {0, 2}
