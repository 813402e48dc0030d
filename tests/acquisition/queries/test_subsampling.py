"""Subsampling of candidates, and the queries that use it."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from query_pools import image_table, make_context, seeded
from scipy.special import softmax
from scipy.stats import chisquare, entropy
from torch import Tensor

from ducats.acquisition.queries import QUERIES, compute_columns
from ducats.acquisition.queries.las import propagated_scores
from ducats.acquisition.queries.subsampling import subsample_candidates
from ducats.acquisition.samples import LazyColumn, QueryContext

SUBSAMPLING_QUERIES = ("badge", "clue", "coreset", "las")


def subsample_of(
    values: Tensor, subsample: int | None, subsample_by: Any, budget: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Subsample candidates with these entropies."""
    samples = image_table(len(values), {"entropy": values})
    return subsample_candidates(make_context(samples, budget, seed=seed), subsample, subsample_by)


def pool(count: int = 120) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 4, generator=seeded(0)) * 2, torch.randn(count, 6, generator=seeded(1)).abs()


def pool_context(name: str, budget: int, seed: int = 0, **params: Any) -> QueryContext:
    z, features = pool()
    columns = compute_columns(z, features, QUERIES[name].bind(params).needs)
    return make_context(image_table(len(z), {**columns}), budget, seed=seed)


def select(name: str, budget: int, seed: int = 0, **params: Any) -> list[int]:
    picks: list[int] = QUERIES[name].fn(pool_context(name, budget, seed, **params), **params).tolist()
    return picks


def test_all_candidates_by_default() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    for subsample in (None, 3, 4):
        order, inclusion_probability = subsample_of(values, subsample, "entropy_weighted")
        assert order.tolist() == [0, 1, 2]
        assert inclusion_probability is None
    assert len(subsample_of(values, 1, "highest_entropy", budget=2)[0]) == 2  # at least the budget


def test_most_uncertain_in_location_order() -> None:
    values = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.7])
    assert subsample_of(values, 3, "highest_entropy")[0].tolist() == [1, 2, 4]  # ties go to the first
    mixed = torch.tensor([4, 2, 0, 3, 1])
    samples = image_table(5, {"entropy": values})[mixed]
    found = subsample_candidates(make_context(samples, 1), 3, "highest_entropy").indices
    assert mixed[found].tolist() == [1, 2, 4]


def test_sampling_is_proportional_to_entropy() -> None:
    values, runs = torch.tensor([0.2, 0.0, 1.0, 0.3, 0.5]), 2000
    drawn = Counter(int(subsample_of(values, 1, "entropy_weighted", seed=seed)[0]) for seed in range(runs))
    assert drawn[1] == 0
    often = [drawn[row] for row in (0, 2, 3, 4)]
    assert chisquare(often, np.array([0.2, 1.0, 0.3, 0.5]) / 2 * runs).pvalue > 0.01


def test_weighted_sum_over_the_subsample_is_unbiased() -> None:
    values = torch.rand(40, generator=seeded(5)) ** 3
    values_to_sum = values * torch.rand(40, generator=seeded(6))
    found = []
    for seed in range(1500):
        order, inclusion_probability = subsample_of(values, 10, "entropy_weighted", seed=seed)
        assert inclusion_probability is not None
        found.append(float((values_to_sum[order] / inclusion_probability).sum()))
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - float(values_to_sum.sum())) < 3 * error
    assert error < 0.02 * float(values_to_sum.sum())


def test_zero_entropies_are_sampled_uniformly() -> None:
    found = [subsample_of(torch.zeros(9), 4, "entropy_weighted", seed=seed)[0].tolist() for seed in range(5)]
    assert all(len(set(order)) == 4 for order in found)
    assert len(set(map(tuple, found))) > 1


@pytest.mark.parametrize("name", SUBSAMPLING_QUERIES)
@pytest.mark.parametrize("subsample_by", ["entropy_weighted", "highest_entropy"])
def test_picks_are_in_the_subsample(name: str, subsample_by: Any) -> None:
    params = {"subsample": 20, "subsample_by": subsample_by}
    given = pool_context(name, 7, seed=3, **params)
    considered = subsample_candidates(given, 20, subsample_by).indices
    picks = select(name, 7, seed=3, **params)
    assert len(set(picks)) == 7
    assert set(picks) <= set(considered.tolist())
    assert select(name, 7, seed=3, subsample=10**6) == select(name, 7, seed=3)


@pytest.mark.parametrize("name", ["badge", "clue", "coreset"])
def test_features_are_computed_for_the_subsample_only(name: str) -> None:
    z, features = pool()
    indices, computed = torch.arange(len(z)), list[int]()

    def some(position: Tensor) -> Tensor:
        computed.append(len(position))
        return features[position]

    columns = compute_columns(z, features, QUERIES[name].bind({"subsample": 20}).needs)
    samples = image_table(len(z), {**columns, "features": LazyColumn(some, indices)})
    picks = QUERIES[name].fn(make_context(samples, 7), subsample=20)
    assert picks.tolist() == select(name, 7, subsample=20)
    assert max(computed) <= 20


def test_clue_with_one_cluster_estimates_the_mean_of_all_candidates() -> None:
    z, features = pool()
    given = pool_context("clue", 1, seed=2, subsample=30)
    order, inclusion_probability = subsample_candidates(given, 30, "entropy_weighted")
    assert inclusion_probability is not None
    weights = entropy(softmax(z[order].double().numpy(), axis=1), axis=1) / inclusion_probability.numpy()
    mean = np.average(features[order].double().numpy(), axis=0, weights=weights)
    nearest = ((features[order].double().numpy() - mean) ** 2).sum(1).argmin()
    assert select("clue", 1, seed=2, subsample=30) == [int(order[nearest])]


def test_las_searches_neighbours_in_all_candidates() -> None:
    z, features = pool()
    all_indices = torch.arange(len(z))
    score = propagated_scores(torch.nn.functional.normalize(features), z.softmax(1), all_indices, 10)
    considered = subsample_candidates(pool_context("las", 1, subsample=30), 30, "highest_entropy").indices
    expected = considered[score[considered].argsort(descending=True)][:5]
    assert select("las", 5, subsample=30, subsample_by="highest_entropy", M=0) == expected.tolist()


@pytest.mark.parametrize(("max_pairs", "pool_size"), [(130 * 100.0, 100), (40 * 10.0, 11), (1e9, 120)])
def test_las_respects_the_limit_on_pairs(
    max_pairs: float, pool_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[tuple[int, int]]()

    def recording_scores(features: Tensor, p: Tensor, neighbour_pool: Tensor, K: int) -> Tensor:
        calls.append((len(features), len(neighbour_pool)))
        return propagated_scores(features, p, neighbour_pool, K)

    monkeypatch.setattr("ducats.acquisition.queries.las.propagated_scores", recording_scores)
    select("las", 5, subsample=30, max_pairs=max_pairs)
    ((n_samples, n_neighbours),) = calls
    assert n_neighbours == pool_size  # at least K + 1
    assert n_samples <= min(120, 30 + pool_size)
