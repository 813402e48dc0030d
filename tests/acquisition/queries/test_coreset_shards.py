"""CoreSet in shards: less memory, and a radius of at most four times the optimum."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import query_pools
import torch
from query_pools import image_table, make_context, seeded
from scipy.spatial.distance import cdist
from torch import Tensor

from ducats.acquisition.queries import coreset as module
from ducats.acquisition.queries.coreset import coreset
from ducats.acquisition.samples import LazyColumn, SampleTable

normal = partial(query_pools.normal, dtype=torch.float32)


def images(features: Tensor, start: int = 0) -> SampleTable:
    return image_table(len(features), {"features": features}, start)


def select(
    features: Tensor, budget: int, labelled: Tensor | None = None, seed: int = 0, **params: Any
) -> Tensor:
    labelled_table = images(features[:0] if labelled is None else labelled, 1000)
    return coreset(make_context(images(features), budget, labelled=labelled_table, seed=seed), **params)


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
        picks = select(features, 3, labelled, seed, shards=shards)
        assert len(picks.unique()) == 3
        assert radius(features, torch.cat([features[picks], labelled])) <= 4 * optimum + 1e-6


def test_outliers_are_found_in_any_shard() -> None:
    features = normal(400, 5, seed=0)
    far = torch.arange(7, 400, 80)
    features[far] = 100 * torch.eye(5)
    picks = select(features, 12, features[:1], shards=8)
    assert set(far.tolist()) <= set(picks.tolist())


def test_shards_no_larger_than_the_budget_change_nothing() -> None:
    features, labelled = normal(60, 4, seed=1), normal(3, 4, seed=2)
    for shards in (2, 9, 500):  # many of them empty
        sharded = select(features, 50, labelled, shards=shards)
        assert torch.equal(sharded, select(features, 50, labelled))


def test_shards_depend_on_the_seed() -> None:
    features, labelled = normal(200, 4, seed=3).relu(), normal(5, 4, seed=4)
    one, other = (select(features, 15, labelled, seed, shards=4) for seed in (7, 8))
    assert not torch.equal(one, other)


def test_duplicates_are_selected_if_nothing_else_is_left() -> None:
    features = torch.eye(3)[torch.arange(60) % 3]
    picks = select(features, 10, shards=3)
    assert len(picks.unique()) == 10
    assert {int(pick) % 3 for pick in picks[:3]} == {0, 1, 2}


def test_at_most_one_shard_is_read_at_once() -> None:
    features, computed = normal(2000, 4, seed=5), list[int]()

    def some(position: Tensor) -> Tensor:
        computed.append(len(position))
        return features[position]

    samples = image_table(2000, {"features": LazyColumn(some, torch.arange(2000))})
    assert torch.equal(coreset(make_context(samples, 20), shards=10), select(features, 20, shards=10))
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


def test_zero_shards_raise() -> None:
    with pytest.raises(ValueError, match="shards must be at least 1, not 0"):
        select(normal(5, 2, seed=0), 2, shards=0)
