"""CLUE and LAS, k-means, and the sample nearest to each centre."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from query_pools import normal, select
from scipy.special import softmax
from scipy.stats import entropy
from torch import Tensor

from ducats.acquisition.queries import kmeans
from ducats.acquisition.queries.kmeans import nearest_unique, one_per_cluster
from ducats.acquisition.queries.las import propagated_scores


def groups(count: int, each: int) -> tuple[Tensor, Tensor]:
    """Samples around a few distant corners, and the corner of each sample."""
    group = torch.arange(count * each) % count
    return torch.eye(count)[group] * 50 + normal(count * each, count).float() * 0.1, group


@pytest.mark.parametrize(
    "full_kmeans_limit", [kmeans.FULL_KMEANS_LIMIT, 0.0], ids=["at once", "in mini-batches"]
)
def test_clue_selects_one_per_group_including_certain_ones(full_kmeans_limit: float) -> None:
    features, group = groups(5, 40)
    z = torch.where(group[:, None] == 3, torch.tensor([4.0, 0.0]), torch.tensor([0.1, 0.0]))
    picks = select("clue", z, 5, features, full_kmeans_limit=full_kmeans_limit)
    assert sorted(int(group[p]) for p in picks) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_clue_with_one_cluster_uses_the_weighted_mean(temperature: float) -> None:
    features, z = normal(50, 3), normal(50, 4, seed=1)
    weights = entropy(softmax(z.numpy() / temperature, axis=1), axis=1)
    mean = np.average(features.numpy(), axis=0, weights=weights)
    distance = ((features.numpy() - mean) ** 2).sum(1)
    assert select("clue", z, 1, features, temperature=temperature) == [int(distance.argmin())]


def test_clue_spends_the_budget_on_two_distinct_points() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[torch.arange(12) % 2]
    picks = select("clue", torch.zeros(12, 3), 4, features)
    assert {p % 2 for p in picks[:2]} == {0, 1}
    assert picks[2:] == [p for p in range(12) if p not in picks[:2]][:2]  # then in their order


def by_scan(centres: Tensor, features: Tensor) -> list[int]:
    taken: list[int] = []
    for centre in centres:
        distance = ((features - centre) ** 2).sum(1)
        distance[taken] = math.inf
        taken.append(int(distance.argmin()))
    return taken


@pytest.mark.parametrize("chunk_size", [kmeans.DISTANCES_PER_CHUNK, 200, 1])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_nearest_to_each_centre(chunk_size: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "DISTANCES_PER_CHUNK", chunk_size)
    features, centres = normal(70, 5).to(kind) + 3, normal(30, 5, seed=1).to(kind) + 3
    assert nearest_unique(centres, features).tolist() == by_scan(centres, features)
    # Identical centres: each takes the next nearest, beyond the shortlist.
    crowd = centres[:1].expand(40, 5)
    assert nearest_unique(crowd, features).tolist() == by_scan(crowd, features)


def test_clusters_are_deterministic_and_weighted() -> None:
    features, _ = groups(3, 30)
    uniform_weights = torch.ones(90)
    first, again = (
        one_per_cluster(features, uniform_weights, 3, torch.Generator().manual_seed(5), full_kmeans_limit=0.0)
        for _ in range(2)
    )
    assert torch.equal(first, again)
    line, pull = torch.arange(10.0)[:, None], torch.zeros(10)
    # Zero weights count equally.
    assert one_per_cluster(line, pull, 1, torch.Generator()).tolist() in ([4], [5])
    pull[7] = 1.0
    assert one_per_cluster(line, pull, 1, torch.Generator()).tolist() == [7]


def las_scores(features: Tensor, p: Tensor, neighbour_pool: list[int], K: int) -> list[float]:
    """LAS by its definition, sample by sample."""
    unit = features / features.norm(dim=1, keepdim=True)
    near, weight, q = [], [], []
    for i in range(len(p)):
        similarities = sorted(
            ((float(unit[i] @ unit[j]), j) for j in neighbour_pool if j != i), reverse=True
        )[:K]
        total = sum(s for s, _ in similarities)
        near.append([j for _, j in similarities])
        weight.append([s / total for s, _ in similarities])
        q.append(-sum(w * float(p[i] @ p[j]) for w, j in zip(weight[i], near[i], strict=True)))
    return [q[i] + sum(w * q[j] for w, j in zip(weight[i], near[i], strict=True)) for i in range(len(p))]


@pytest.mark.parametrize("neighbour_pool", [range(40), range(3, 40, 4)])
def test_las_against_its_definition(neighbour_pool: range) -> None:
    features, p = normal(40, 6).abs(), (normal(40, 4, seed=1) * 2).softmax(1)
    found = propagated_scores(torch.nn.functional.normalize(features), p, torch.tensor(neighbour_pool), 5)
    assert found.tolist() == pytest.approx(las_scores(features, p, list(neighbour_pool), 5))


def test_las_without_spare_candidates_takes_the_highest_scores() -> None:
    features, z = normal(60, 6).abs(), normal(60, 4, seed=1) * 2
    scores = las_scores(features, z.softmax(1), list(range(60)), 10)
    expected = sorted(range(60), key=lambda i: -scores[i])[:7]
    assert select("las", z, 7, features, M=0) == expected


@pytest.mark.parametrize("params", [{"M": 10}, {"K": 4, "max_pairs": 80 * 40}], ids=["all", "a subset"])
def test_las_selects_where_neighbours_disagree(params: dict[str, Any]) -> None:
    features, group = groups(4, 20)
    z = torch.tensor([5.0, 0.0]).repeat(80, 1)
    z[(group < 2) & (torch.arange(80) % 8 < 4)] = torch.tensor([0.0, 5.0])  # half of two groups
    picks = select("las", z, 2, features, **params)
    assert sorted(int(group[p]) for p in picks) == [0, 1]  # also diverse


def test_las_on_zero_and_negative_features() -> None:
    z = normal(20, 3)
    for features in (torch.zeros(20, 4), -normal(20, 4)):  # some have no neighbour with positive similarity
        assert len(set(select("las", z, 5, features))) == 5
    assert len(set(select("las", z[:2], 1, normal(2, 4)))) == 1  # only one neighbour exists
