"""CoreSet equals plain greedy k-centre; in shards, its radius is at most four times the optimum."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import query_pools
import torch
from query_pools import image_table, line, make_context, seeded
from scipy.spatial.distance import cdist
from torch import Tensor

from ducats.acquisition.queries import coreset as module
from ducats.acquisition.queries import distances
from ducats.acquisition.queries.coreset import coreset
from ducats.acquisition.samples import LazyColumn, SampleTable
from ducats.utils.errors import UserError

normal = partial(query_pools.normal, dtype=torch.float32)


def images(features: Tensor, start: int = 0) -> SampleTable:
    return image_table(len(features), {"features": features}, start)


def select(features: Tensor, budget: int, labelled: Tensor | None = None, **params: Any) -> list[int]:
    labelled_table = images(features[:0] if labelled is None else labelled, 1000)
    source, seed = params.pop("source", None), params.pop("seed", 0)
    source_table = None if source is None else images(source)
    context = make_context(images(features), budget, labelled=labelled_table, source=source_table, seed=seed)
    picks: list[int] = coreset(context, **params).tolist()
    return picks


def pool(seed: int, count: int = 200) -> Tensor:
    features = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).relu()
    features[count // 2 :: 9] = features[3]  # duplicates
    return features


def plain(features: Tensor, budget: int, centres: Tensor) -> list[int]:
    """Greedy k-centre that recomputes all distances."""
    x, centres_so_far = features.double().numpy(), [*centres.double().numpy()]
    picks = list[int]()
    if not centres_so_far:
        picks.append(int(((x - x.mean(0)) ** 2).sum(1).argmin()))
        centres_so_far.append(x[picks[0]])
    while len(picks) < budget:
        distance = cdist(x, np.stack(centres_so_far)).min(1)
        distance[picks] = -1
        picks.append(int(distance.argmax()))
        centres_so_far.append(x[picks[-1]])
    return picks[:budget]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_labelled", [0, 7])
@pytest.mark.parametrize("n_source", [0, 20])
def test_picks_equal_the_plain_algorithm(seed: int, n_labelled: int, n_source: int) -> None:
    features, labelled, source = pool(seed), pool(seed + 50)[:n_labelled], pool(seed + 90)[:n_source] + 1
    with_source = select(features, 60, labelled, source=source, centres="source_and_labelled")
    assert with_source == plain(features, 60, torch.cat([labelled, source]))
    assert select(features, 60, labelled, source=source) == plain(features, 60, labelled)


def test_invalid_input_raises() -> None:
    with pytest.raises(UserError, match=r"query.params.centres=labelled"):
        select(pool(0), 3, centres="source_and_labelled")
    with pytest.raises(ValueError, match="non-finite"):
        select(line(1, float("nan")), 1)


def test_identical_samples_are_selected_in_order() -> None:
    assert select(torch.ones(5, 3), 4) == [0, 1, 2, 3]
    assert select(torch.full((5, 3), 0.1), 4, torch.full((1, 3), 0.1)) == [0, 1, 2, 3]


def test_most_distances_are_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(6000, 6, generator=torch.Generator().manual_seed(0))
    compared, original = [0], distances.squared_distance_to_nearest

    def counted(factors: list[Tensor], centres: list[Tensor]) -> Tensor:
        compared[0] += len(factors[0]) * len(centres[0])
        return original(factors, centres)

    monkeypatch.setattr(module, "squared_distance_to_nearest", counted)
    assert select(features, 60) == plain(features, 60, features[:0])
    assert compared[0] < 6000 * 60 / 2


# ---- in shards


def radius(features: Tensor, centres: Tensor) -> float:
    """Distance of the farthest sample to its nearest centre."""
    return float(cdist(features.double(), centres.double()).min(1).max())


def best_radius(features: Tensor, labelled: Tensor, budget: int) -> float:
    """Optimal radius, by exhaustive search."""
    distance = cdist(features.double(), features.double())
    label_distance = cdist(features.double(), labelled.double()).min(1) if len(labelled) else np.inf
    choices = itertools.combinations(range(len(features)), budget)
    return min(float(np.minimum(distance[list(some)].min(0), label_distance).max()) for some in choices)


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("n_labelled", [0, 2])
@pytest.mark.parametrize("kind", ["cloud", "groups"])
def test_within_four_times_the_optimal_radius(shards: int, n_labelled: int, kind: str) -> None:
    for seed in range(4):
        labelled = normal(n_labelled, 2, seed=seed + 90)
        features = normal(24, 2, seed=seed)
        if kind == "groups":
            features = 0.02 * features + normal(6, 2, seed=seed + 30)[torch.arange(24) % 6]
        labelled_features = [labelled] if n_labelled else []
        optimum = best_radius(features, labelled, 3)
        representatives, _ = module._shard_representatives(
            images(features), labelled_features, 3, shards, seeded(seed)
        )
        # The representatives alone are within twice the optimum.
        assert radius(features, torch.cat([features[representatives], labelled])) <= 2 * optimum + 1e-6
        picks = select(features, 3, labelled, seed=seed, shards=shards)
        assert len(set(picks)) == 3
        assert radius(features, torch.cat([features[picks], labelled])) <= 4 * optimum + 1e-6


def test_shards_no_larger_than_the_budget_change_nothing() -> None:
    features, labelled = normal(60, 4, seed=1), normal(3, 4, seed=2)
    for shards in (2, 9, 500):  # many of them empty
        sharded = select(features, 50, labelled, shards=shards)
        assert sharded == select(features, 50, labelled)


def test_shards_depend_on_the_seed() -> None:
    features, labelled = normal(200, 4, seed=3).relu(), normal(5, 4, seed=4)
    one, other = (select(features, 15, labelled, seed=seed, shards=4) for seed in (7, 8))
    assert one != other


def test_at_most_one_shard_is_read_at_once() -> None:
    features, computed = normal(2000, 4, seed=5), list[int]()

    def some(position: Tensor) -> Tensor:
        computed.append(len(position))
        return features[position]

    samples = image_table(2000, {"features": LazyColumn(some, torch.arange(2000))})
    assert coreset(make_context(samples, 20), shards=10).tolist() == select(features, 20, shards=10)
    assert max(computed) < 300
    assert sum(computed) < 2 * 2000


@pytest.mark.parametrize("block", [module.CENTRES_PER_BLOCK, 3])
def test_dropped_samples_are_near_a_centre(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CENTRES_PER_BLOCK", block)
    features, centres = normal(300, 6, seed=6) + 10, normal(20, 6, seed=7) + 10
    squared = (cdist(features.double(), centres.double()) ** 2).min(1)
    squared_radius = float(np.median(squared))
    ordered = module._order_by_coverage([centres[:5], centres[5:]], features[:100], squared_radius)
    assert torch.equal(ordered.sort(0).values, centres.sort(0).values)
    uncovered = module._uncovered(features, ordered, squared_radius)
    assert set((squared > squared_radius).nonzero()[0]) <= set(uncovered.tolist())
    # The tolerance is relative to the norms, which are large.
    assert squared[uncovered].min() > squared_radius - 0.05


def test_centres_that_cover_most_come_first() -> None:
    centres = torch.tensor([[9.0], [50.0], [0.0], [10.0], [1.0]])
    sample = torch.tensor([[0.5], [0.6], [-0.8], [9.8], [10.5], [30.0]])
    ordered = module._order_by_coverage([centres[:2], centres[2:]], sample, 1.0)
    # 0 covers three samples within a distance of 1, then 10 covers two; 9 and 1 add none.
    assert ordered.flatten().tolist() == [0.0, 10.0, 9.0, 50.0, 1.0]
