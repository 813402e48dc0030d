"""Subsampling of candidates, and the queries that use it."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare, entropy
from torch import Tensor

from ducats.errors import UserError
from ducats.queries import QUERIES, compute_columns
from ducats.queries.las import propagated_scores
from ducats.queries.subsampling import subsample_candidates
from ducats.samples import LazyColumn, QueryContext, SampleTable

PRESELECTING = ("badge", "clue", "coreset", "las")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def context_with_entropy(values: Tensor, budget: int = 1, seed: int = 0) -> QueryContext:
    where = torch.arange(len(values))
    rows = SampleTable(where * 3, torch.zeros_like(where), {"entropy": values})
    return QueryContext(rows, rows[where[:0]], budget, seeded(seed))


def pool(count: int = 120) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 4, generator=seeded(0)) * 2, torch.randn(count, 6, generator=seeded(1)).abs()


def make_context(name: str, budget: int, seed: int = 0, **params: Any) -> QueryContext:
    z, features = pool()
    where = torch.arange(len(z))
    columns = compute_columns(z, features, QUERIES[name].bind(params).needs)
    rows = SampleTable(where, torch.zeros_like(where), columns)
    return QueryContext(rows, rows[where[:0]], budget, seeded(seed))


def select(name: str, budget: int, seed: int = 0, **params: Any) -> list[int]:
    picks: list[int] = QUERIES[name].fn(make_context(name, budget, seed, **params), **params).tolist()
    return picks


def test_all_candidates_by_default() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    for among in (None, 3, 4):
        order, chance = subsample_candidates(context_with_entropy(values), among, "entropy_weighted")
        assert order.tolist() == [0, 1, 2]
        assert chance is None
    assert (
        len(subsample_candidates(context_with_entropy(values, budget=2), 1, "highest_entropy").indices) == 2
    )  # at least the budget


def test_most_uncertain_in_location_order() -> None:
    values = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.7])
    assert subsample_candidates(context_with_entropy(values), 3, "highest_entropy").indices.tolist() == [
        1,
        2,
        4,
    ]  # ties go to the first
    mixed = torch.tensor([4, 2, 0, 3, 1])
    given = context_with_entropy(values)
    found = subsample_candidates(
        QueryContext(given.candidates[mixed], given.labelled, 1, seeded(0)), 3, "highest_entropy"
    ).indices
    assert mixed[found].tolist() == [1, 2, 4]


def test_sampling_is_proportional_to_entropy() -> None:
    values, runs = torch.tensor([0.2, 0.0, 1.0, 0.3, 0.5]), 2000
    drawn = Counter(
        int(subsample_candidates(context_with_entropy(values, seed=seed), 1, "entropy_weighted").indices)
        for seed in range(runs)
    )
    assert drawn[1] == 0
    often = [drawn[row] for row in (0, 2, 3, 4)]
    assert chisquare(often, np.array([0.2, 1.0, 0.3, 0.5]) / 2 * runs).pvalue > 0.01


def test_weighted_sum_over_the_subsample_is_unbiased() -> None:
    values = torch.rand(40, generator=seeded(5)) ** 3
    worth = values * torch.rand(40, generator=seeded(6))
    found = []
    for seed in range(1500):
        order, chance = subsample_candidates(context_with_entropy(values, seed=seed), 10, "entropy_weighted")
        assert chance is not None
        found.append(float((worth[order] / chance).sum()))
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - float(worth.sum())) < 3 * error
    assert error < 0.02 * float(worth.sum())


def test_zero_entropies_are_sampled_uniformly() -> None:
    found = [
        subsample_candidates(
            context_with_entropy(torch.zeros(9), seed=seed), 4, "entropy_weighted"
        ).indices.tolist()
        for seed in range(5)
    ]
    assert all(len(set(order)) == 4 for order in found)
    assert len(set(map(tuple, found))) > 1


@pytest.mark.parametrize("name", PRESELECTING)
@pytest.mark.parametrize("chosen", ["entropy_weighted", "highest_entropy"])
def test_picks_are_in_the_subsample(name: str, chosen: Any) -> None:
    params = {"among": 20, "chosen": chosen}
    given = make_context(name, 7, seed=3, **params)
    compete = subsample_candidates(given, 20, chosen).indices
    picks = select(name, 7, seed=3, **params)
    assert len(set(picks)) == 7
    assert set(picks) <= set(compete.tolist())
    assert select(name, 7, seed=3, among=10**6) == select(name, 7, seed=3)


@pytest.mark.parametrize("name", ["badge", "clue", "coreset"])
def test_features_are_computed_for_the_subsample_only(name: str) -> None:
    z, features = pool()
    where, computed = torch.arange(len(z)), list[int]()

    def some(position: Tensor) -> Tensor:
        computed.append(len(position))
        return features[position]

    columns = compute_columns(z, features, QUERIES[name].bind({"among": 20}).needs)
    rows = SampleTable(where, torch.zeros_like(where), {**columns, "features": LazyColumn(some, where)})
    picks = QUERIES[name].fn(QueryContext(rows, rows[where[:0]], 7, seeded(0)), among=20)
    assert picks.tolist() == select(name, 7, among=20)
    assert max(computed) <= 20


def test_clue_with_one_cluster_estimates_the_mean_of_all_candidates() -> None:
    z, features = pool()
    given = make_context("clue", 1, seed=2, among=30)
    order, chance = subsample_candidates(given, 30, "entropy_weighted")
    assert chance is not None
    weights = entropy(softmax(z[order].double().numpy(), axis=1), axis=1) / chance.numpy()
    mean = np.average(features[order].double().numpy(), axis=0, weights=weights)
    nearest = ((features[order].double().numpy() - mean) ** 2).sum(1).argmin()
    assert select("clue", 1, seed=2, among=30) == [int(order[nearest])]


def test_las_searches_neighbours_in_all_candidates() -> None:
    z, features = pool()
    everyone = torch.arange(len(z))
    score = propagated_scores(torch.nn.functional.normalize(features), z.softmax(1), everyone, 10)
    compete = subsample_candidates(make_context("las", 1, among=30), 30, "highest_entropy").indices
    expected = compete[score[compete].argsort(descending=True)][:5]
    assert select("las", 5, among=30, chosen="highest_entropy", M=0) == expected.tolist()


@pytest.mark.parametrize(("pairs", "sought"), [(130 * 100.0, 100), (40 * 10.0, 11), (1e9, 120)])
def test_las_respects_the_limit_on_pairs(pairs: float, sought: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, int]]()

    def noted(features: Tensor, p: Tensor, among: Tensor, K: int) -> Tensor:
        seen.append((len(features), len(among)))
        return propagated_scores(features, p, among, K)

    monkeypatch.setattr("ducats.queries.las.propagated_scores", noted)
    select("las", 5, among=30, pairs=pairs)
    ((judged, among),) = seen
    assert among == sought  # at least K + 1
    assert judged <= min(120, 30 + sought)


@pytest.mark.parametrize("name", PRESELECTING)
def test_needs_and_invalid_params(name: str) -> None:
    plain = QUERIES[name].needs
    assert QUERIES[name].bind({}).needs == QUERIES[name].bind({"among": None}).needs == plain
    assert QUERIES[name].bind({"among": 5}).needs == ("entropy", *plain)
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        select(name, 2, among=0)
    with pytest.raises(ValueError, match="must be one of drawn, uncertain"):
        select(name, 2, among=9, chosen="best")


@pytest.mark.parametrize("name", PRESELECTING)
def test_too_large_features_raise_with_a_remedy(name: str) -> None:
    where = torch.arange(50_000)

    def wide(position: Tensor) -> Tensor:
        return torch.zeros(1, 2**15).expand(len(position), -1)

    columns: dict[str, Tensor | LazyColumn] = {
        "z": torch.zeros(50_000, 2),
        "features": LazyColumn(wide, where),
    }
    rows = SampleTable(where, torch.zeros_like(where), columns)
    wrong = r"6\.1 GB of features; .*set query.params.subsample"
    with pytest.raises(UserError, match=wrong) as refused:
        QUERIES[name].fn(QueryContext(rows, rows[where[:0]], 3, seeded(0)))
    assert ("query.params.shards" in str(refused.value)) == (name == "coreset")
