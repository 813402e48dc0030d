"""BADGE: k-means++ seeding on gradients that are never formed."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from query_pools import image_table, make_context
from scipy.spatial.distance import cdist
from scipy.stats import chisquare
from torch import Tensor

from ducats.acquisition.queries import badge as module
from ducats.acquisition.queries import distances
from ducats.acquisition.queries.badge import badge
from ducats.acquisition.samples import QueryContext


def make_badge_context(z: Tensor, features: Tensor, budget: int, seed: int = 0) -> QueryContext:
    return make_context(image_table(len(z), {"z": z, "features": features}), budget, seed=seed)


def picks(z: Tensor, features: Tensor, budget: int, seed: int = 0) -> list[int]:
    found: list[int] = badge(make_badge_context(z, features, budget, seed)).tolist()
    return found


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
        assert picks(z, features, 3)[0] == longest


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
    first = picks(z, features, 1)[0]
    runs = 600
    counts = Counter(tuple(picks(z, features, 3, seed)) for seed in range(runs))
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
            make_badge_context(z, features, 3).candidates, factors, 3, generator, sample_weight
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
        found = picks(z, features, 8, seed)
        assert sorted(pick % 3 for pick in found[:3]) == [0, 1, 2]
        assert len(set(found)) == 8
        rests.add(tuple(found[3:]))
    assert len(rests) > 15


def test_nearly_certain_samples_are_distinguished() -> None:
    # 1 - p is 2e-9 and 4e-9: float32 rounds both to 0.
    z = torch.tensor([[20.0, 0.0], [19.3, 0.0]], dtype=torch.float32)
    assert picks(z, torch.ones(2, 3), 1) == [1]
