"""BADGE: k-means++ seeding on gradients that are never formed."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import chisquare
from torch import Tensor

from ducats.acquisition.queries import badge as module
from ducats.acquisition.queries import distances
from ducats.acquisition.queries.badge import badge
from ducats.acquisition.samples import QueryContext, SampleTable


def make_context(z: Tensor, features: Tensor, budget: int, seed: int = 0) -> QueryContext:
    indices = torch.arange(len(z))
    samples = SampleTable(indices, torch.zeros_like(indices), {"z": z, "features": features})
    return QueryContext(samples, samples[indices[:0]], budget, torch.Generator().manual_seed(seed))


def pool(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z, features = torch.randn(count, 4, generator=generator) * 2, torch.randn(count, 5, generator=generator)
    return z, features.relu()


def gradients(z: Tensor, features: Tensor) -> np.typing.NDArray[np.float64]:
    """Gradient of the cross-entropy with respect to the last layer, by autograd, sample by sample."""
    result = []
    for logits, feature in zip(z.double(), features.double(), strict=True):
        weights = torch.zeros(len(logits), len(feature), dtype=torch.float64, requires_grad=True)
        loss = torch.nn.functional.cross_entropy((weights @ feature + logits)[None], logits.argmax()[None])
        result.append(torch.autograd.grad(loss, weights)[0].flatten().numpy())
    return np.stack(result)


def test_first_pick_is_the_largest_gradient() -> None:
    for seed in range(5):
        z, features = pool(seed, 40)
        longest = (gradients(z, features) ** 2).sum(1).argmax()
        assert badge(make_context(z, features, 3)).tolist()[0] == longest


def test_distances_between_gradients() -> None:
    z, features = pool(0, 60)
    g = gradients(z, features)
    factors = [module._residual(z), features]
    found = distances.squared_distance_to_nearest(factors, [factor[:7] for factor in factors])
    np.testing.assert_allclose(found, (cdist(g, g[:7]) ** 2).min(1), rtol=1e-5, atol=1e-9)
    assert (found[:7] == 0).all()


@pytest.mark.parametrize("min_rejections", [0, 10**9])
def test_sampling_is_proportional_to_squared_distance(
    min_rejections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also if distances are only updated for drawn samples.
    monkeypatch.setattr(module, "MIN_REJECTIONS_BEFORE_UPDATE", min_rejections)
    z, features = pool(3, 6)
    squared = cdist(gradients(z, features), gradients(z, features)) ** 2
    first = int(badge(make_context(z, features, 1))[0])
    runs = 600
    counts = Counter(tuple(badge(make_context(z, features, 3, seed)).tolist()) for seed in range(runs))
    pairs = list(itertools.permutations([row for row in range(6) if row != first], 2))
    expected = []
    for second, third in pairs:
        after = np.minimum(squared[first], squared[second])
        expected.append(squared[first, second] / squared[first].sum() * after[third] / after.sum())
    assert set(counts) <= {(first, *pair) for pair in pairs}
    observed = [counts[first, second, third] for second, third in pairs]
    assert chisquare(observed, np.array(expected) * runs).pvalue > 0.01


@pytest.mark.parametrize("min_rejections", [0, 10**9])
def test_sampling_is_proportional_to_sample_weights(
    min_rejections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_REJECTIONS_BEFORE_UPDATE", min_rejections)
    z, features = pool(3, 6)
    squared = cdist(gradients(z, features), gradients(z, features)) ** 2
    sample_weight, runs, counts = torch.tensor([1.0, 5.0, 2.0, 1.0, 9.0, 3.0]), 600, Counter[int]()
    factors = (module._residual(z), features)
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        seeds = module._KMeansPlusPlus(
            make_context(z, features, 3).candidates, factors, 3, generator, sample_weight
        )
        seeds.add(0)
        seeds.add(3)
        counts[seeds.sample()] += 1
    others = [1, 2, 4, 5]
    expected = squared[:, [0, 3]].min(1)[others] * sample_weight.numpy()[others]
    assert chisquare([counts[row] for row in others], expected / expected.sum() * runs).pvalue > 0.01


def test_one_of_each_kind_then_uniform() -> None:
    z = torch.tensor([[1.0, 0.0], [0.3, 0.1], [0.0, 2.0]]).repeat(5, 1)
    features = torch.tensor([[0.1, 2.0], [3.0, 0.7], [0.9, 0.9]]).repeat(5, 1)
    rests = set()
    for seed in range(20):
        picks = badge(make_context(z, features, 8, seed)).tolist()
        assert sorted(pick % 3 for pick in picks[:3]) == [0, 1, 2]
        assert len(set(picks)) == 8
        rests.add(tuple(picks[3:]))
    assert len(rests) > 15


def test_zero_gradients_are_sampled_uniformly() -> None:
    z, features = torch.tensor([[1000.0, 0.0]] * 30), torch.ones(30, 3)
    found = [badge(make_context(z, features, 30, seed)).tolist() for seed in range(3)]
    assert all(sorted(picks) == list(range(30)) for picks in found)
    assert found[0][1:] != found[1][1:]


def test_nearly_certain_samples_are_distinguished() -> None:
    # 1 - p is 2e-9 and 4e-9: float32 rounds both to 0.
    z = torch.tensor([[20.0, 0.0], [19.3, 0.0]], dtype=torch.float32)
    assert badge(make_context(z, torch.ones(2, 3), 1)).tolist() == [1]


@pytest.mark.parametrize("budget", [1, 12, 90, 100])
def test_picks_follow_a_permuted_pool(budget: int) -> None:
    z, features = pool(1, 90)
    z[50::6], features[50::6] = z[2], features[2]
    mixed = torch.randperm(90, generator=torch.Generator().manual_seed(4))
    given = make_context(z, features, budget)
    straight = badge(given)
    permuted = badge(
        QueryContext(given.candidates[mixed], given.labelled, budget, torch.Generator().manual_seed(0))
    )
    assert torch.equal(mixed[permuted], straight)
    assert len(straight.unique()) == min(budget, 90)


def test_nothing_to_pick() -> None:
    z, features = pool(0, 5)
    assert (
        badge(make_context(z, features, 0)).tolist()
        == badge(make_context(z[:0], features[:0], 3)).tolist()
        == []
    )


def test_chunk_sizes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    z, features = pool(2, 300)
    expected = badge(make_context(z, features, 50)).tolist()
    monkeypatch.setattr(distances, "ELEMENTS_PER_CHUNK", 64)
    monkeypatch.setattr(distances, "CENTRES_PER_CHUNK", 3)
    assert badge(make_context(z, features, 50)).tolist() == expected


def test_regions_overlap_only_if_no_other_is_left() -> None:
    z, features = pool(6, 40)
    indices = torch.arange(40)
    samples = SampleTable(torch.zeros_like(indices), indices, {"z": z, "features": features}, (1, 40), 1)
    for seed in range(5):
        picks = (
            badge(QueryContext(samples, samples[indices[:0]], 13, torch.Generator().manual_seed(seed)))
            .sort()
            .values
        )
        assert picks.diff().min() > 1
        everything = badge(
            QueryContext(samples, samples[indices[:0]], 40, torch.Generator().manual_seed(seed))
        )
        assert everything.sort().values.tolist() == indices.tolist()
