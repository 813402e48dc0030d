"""CoreSet equals plain greedy k-centre with fewer distance computations."""

from typing import Any

import numpy as np
import pytest
import torch
from query_pools import image_table, line, make_context
from scipy.spatial.distance import cdist
from torch import Tensor

from ducats.acquisition.queries import coreset as module
from ducats.acquisition.queries import distances
from ducats.acquisition.queries.coreset import coreset
from ducats.acquisition.samples import LazyColumn, SampleTable
from ducats.utils.errors import UserError


def images(features: Tensor, start: int = 0) -> SampleTable:
    return image_table(len(features), {"features": features}, start)


def select(features: Tensor, budget: int, labelled: Tensor | None = None, **params: Any) -> list[int]:
    labelled_table = images(features[:0] if labelled is None else labelled, 1000)
    source = params.pop("source", None)
    source_table = None if source is None else images(source)
    context = make_context(images(features), budget, labelled=labelled_table, source=source_table)
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


def test_farthest_from_labels_and_picks() -> None:
    places = line(1, 2, 6, 20, 14, 3)
    # From the label at 0: 20. Then 14 is 6 from 20, and 6 is 6 from 0: the lower location. Then 14, then 3.
    assert select(places, 4, line(0)) == [3, 2, 4, 5]
    assert select(places, 2, line(0, 19)) == [2, 4]


def test_without_labels_it_starts_near_the_mean() -> None:
    assert select(line(0, 10, 4, 5, 7), 3) == [3, 0, 1]  # the mean is 5.2; then 0 and 10 are 5 away


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_labelled", [0, 7])
def test_picks_equal_the_plain_algorithm(seed: int, n_labelled: int) -> None:
    features, labelled = pool(seed), pool(seed + 50)[:n_labelled]
    assert select(features, 60, labelled) == plain(features, 60, labelled)


def test_source_as_centres() -> None:
    features, source, labelled = pool(0), pool(1) + 1, pool(2)[:4]
    found = select(features, 30, labelled, source=source, centres="source_and_labelled")
    assert found == plain(features, 30, torch.cat([labelled, source]))
    assert found != select(features, 30, labelled, source=source)
    assert select(line(1, 9), 1, line(0), source=line(8), centres="source_and_labelled") == [0]


def test_invalid_input_raises() -> None:
    with pytest.raises(UserError, match=r"query.params.centres=labelled"):
        select(pool(0), 3, centres="source_and_labelled")
    with pytest.raises(ValueError, match="must be labelled or source_and_labelled"):
        select(pool(0), 3, centres="nothing")
    with pytest.raises(ValueError, match="non-finite"):
        select(line(1, float("nan")), 1)


def test_identical_samples_are_selected_in_order() -> None:
    assert select(torch.ones(5, 3), 4) == [0, 1, 2, 3]
    assert select(torch.full((5, 3), 0.1), 4, torch.full((1, 3), 0.1)) == [0, 1, 2, 3]


@pytest.mark.parametrize("few", [1, 5])
def test_chunk_sizes_do_not_matter(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = select(pool(5), 80, pool(6)[:20])
    monkeypatch.setattr(distances, "ELEMENTS_PER_CHUNK", 40 * few)
    monkeypatch.setattr(distances, "CENTRES_PER_CHUNK", few)
    monkeypatch.setattr(distances, "INITIAL_REFRESH_SIZE", few)
    monkeypatch.setattr(module, "REFRESH_GROUP_SIZE", few)
    assert select(pool(5), 80, pool(6)[:20]) == expected


def test_most_distances_are_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(6000, 6, generator=torch.Generator().manual_seed(0))
    compared, original = [0], distances.squared_distance_to_nearest

    def counted(factors: list[Tensor], centres: list[Tensor]) -> Tensor:
        compared[0] += len(factors[0]) * len(centres[0])
        return original(factors, centres)

    monkeypatch.setattr(module, "squared_distance_to_nearest", counted)
    assert select(features, 60) == plain(features, 60, features[:0])
    assert compared[0] < 6000 * 60 / 2


def test_regions_overlap_only_if_no_other_is_left() -> None:
    indices = torch.arange(24)  # a map of 2 x 12, and regions of radius two
    features = {"features": indices[:, None].float()}
    samples = SampleTable(torch.zeros_like(indices), indices, features, (2, 12), 2)
    column = coreset(make_context(samples, 6)) % 12
    distance = (column[:4, None] - column[:4]).abs() + 99 * torch.eye(4)
    assert distance.min() > 2  # no more than four fit side by side
    assert (column[4:, None] - column[:4]).abs().min() <= 2
    assert coreset(make_context(samples, 24)).sort().values.tolist() == indices.tolist()


def test_too_large_pixel_features_raise() -> None:
    computed = list[int]()

    def features(position: Tensor) -> Tensor:
        computed.append(len(position))
        return torch.zeros(1, 2**15).expand(len(position), -1)

    indices = torch.arange(50_000)
    columns = {"features": LazyColumn(features, indices)}
    samples = SampleTable(torch.zeros_like(indices), indices, columns, (1, 50_000))
    with pytest.raises(UserError, match=r"6.1 GB of features.*task.unit=superpixel"):
        coreset(make_context(samples, 3))
    assert computed == [1]
