"""DBAL equals plain greedy k-medoids, also on a random subset."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from query_pools import image_table, line, make_context
from scipy.spatial.distance import cdist
from torch import Tensor

from ducats.acquisition.queries import distances
from ducats.acquisition.queries.dbal import dbal
from ducats.acquisition.samples import SampleTable


def images(features: Tensor, margin: Tensor | None = None) -> SampleTable:
    margin = torch.zeros(len(features)) if margin is None else margin
    return image_table(len(features), {"features": features, "margin": margin})


def select(
    features: Tensor,
    budget: int,
    margin: Tensor | None = None,
    labelled: Tensor | None = None,
    source: Tensor | None = None,
    seed: int = 0,
    **params: Any,
) -> list[int]:
    labelled_table = images(features[:0] if labelled is None else labelled)
    source_table = None if source is None else images(source)
    context = make_context(
        images(features, margin), budget, labelled=labelled_table, source=source_table, seed=seed
    )
    picks: list[int] = dbal(context, **{"subsample": 5000, "medoid_passes": 0, **params}).tolist()
    return picks


def pool(seed: int, count: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features, margin = torch.randn(count, 5, generator=generator), torch.rand(count, generator=generator)
    features[count // 2 :: 8], margin[count // 2 :: 8] = features[1], margin[1]
    return features, margin


def plain(features: Tensor, margin: Tensor, budget: int, labels: Tensor) -> list[int]:
    """Greedy k-medoids that recomputes all gains."""
    x, weight, picks = features.double().numpy(), 1 - margin.double().numpy(), list[int]()
    distance = cdist(x, x, "cityblock")
    nearest = cdist(x, labels.double().numpy(), "cityblock").min(1) if len(labels) else distance.max()
    while len(picks) < budget:
        gain = np.maximum(0, nearest - distance) @ weight
        gain[picks] = -1
        picks.append(int(gain.argmax()))
        nearest = np.minimum(nearest, distance[picks[-1]])
    return picks


def cost(features: Tensor, margin: Tensor, picks: list[int], labels: Tensor) -> float:
    centres = torch.cat([features[picks], labels]).double().numpy()
    nearest = cdist(features.double().numpy(), centres, "cityblock").min(1)
    return float(nearest @ (1 - margin.double().numpy()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_labelled", "n_source"), [(0, 0), (6, 0), (0, 40), (6, 40)])
def test_picks_equal_the_plain_algorithm(seed: int, n_labelled: int, n_source: int) -> None:
    features, margin = pool(seed)
    labelled, source = pool(seed + 20)[0][:n_labelled], pool(seed + 40)[0][:n_source] + 0.5
    # Breaks ties, which the order of summation would decide.
    margin = margin + torch.linspace(0, 1e-3, len(margin))
    found = select(features, 25, margin, labelled, source=source)
    assert found == plain(features, margin, 25, torch.cat([labelled, source]))


def test_random_subset_of_many_samples() -> None:
    # Twenty close samples, and a distant one, which is picked if it is in the subset.
    features = torch.cat([torch.linspace(0, 1, 20), torch.tensor([500.0])])[:, None]
    found = [select(features, 1, source=line(0), seed=seed, subsample=7) == [20] for seed in range(60)]
    assert 8 <= sum(found) <= 35  # a third of the time, within three standard deviations
    assert select(features, 1, source=line(0), subsample=21) == [20]
    assert select(features, 11, source=line(0), subsample=1)[0] == 20  # twice the budget is all samples


@pytest.mark.parametrize("elements", [distances.ELEMENTS_PER_CHUNK, 7])  # all picks at once, or one by one
def test_refinement_moves_picks_to_medoids(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "ELEMENTS_PER_CHUNK", elements)
    # The first pick lies between two groups until the second takes one of them.
    places = line(0, 1, 2, 5, 8, 9, 10)
    assert select(places, 2)[0] == 3
    assert sorted(select(places, 2, medoid_passes=10)) in ([1, 4], [1, 5], [2, 5])
    saved = list[float]()
    for seed in range(5):
        features, margin = pool(seed)
        source = pool(seed + 40)[0][:9] + 2
        runs = [select(features, 12, margin, source=source, medoid_passes=n) for n in range(4)]
        costs = [cost(features, margin, picks, source) for picks in runs]
        assert all(after <= before * (1 + 1e-6) for before, after in pairwise(costs))
        assert all(len(set(picks)) == 12 for picks in runs)
        saved.append(costs[0] - costs[-1])
    assert sum(amount > 0.1 for amount in saved) >= 3


def test_duplicates_stay_distinct_in_refinement() -> None:
    features = torch.zeros(6, 2)
    assert sorted(select(features, 5, medoid_passes=3)) == [0, 1, 2, 3, 4]
    assert sorted(select(features, 5, labelled=torch.zeros(1, 2), medoid_passes=3)) == [0, 1, 2, 3, 4]
