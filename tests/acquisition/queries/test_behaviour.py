"""Picks of each query on small hand-made pools and maps."""

import math
from typing import Any

import pytest
import torch
from query_pools import log_alpha, select
from torch import Tensor

from ducats.acquisition.queries import QUERIES
from ducats.acquisition.units import select_in_image
from ducats.data.domain import UNLABELLED, VOID
from ducats.settings import Unit


def select_pixels(
    name: str,
    z: Tensor,
    budget: int,
    unit: Unit,
    *,
    known_labels: Tensor | None = None,
    acquired: Tensor | None = None,
    **params: Any,
) -> list[tuple[int, int]]:
    """Rows and columns of the pixels selected in one map ``(C, H, W)``."""
    nothing_known = torch.full(z.shape[1:], UNLABELLED, dtype=torch.int8)
    selection = select_in_image(
        QUERIES[name].bind(params),
        unit,
        z=z,
        features=None,
        known_labels=nothing_known if known_labels is None else known_labels,
        acquired=acquired,
        image=0,
        pixels=None,
        budget=budget,
        generator=torch.Generator().manual_seed(0),
    )
    return [divmod(position, z.shape[2]) for position in selection.position.tolist()]


def test_scores_of_probabilities_by_hand() -> None:
    z = log_alpha([60, 30, 10], [50, 49, 1], [34, 33, 33], [98, 1, 1])
    # The gaps are 0.30, 0.01, 0.01 (0.34 - 0.33) and 0.97; ties go to the lower location.
    assert select("margin", z, 2) == [1, 2]
    assert select("least_confident", z, 2) == [2, 1]
    assert select("entropy", z, 2) == [2, 0]  # H = 0.898, 0.741, 1.0986, 0.112
    # All certain: the differences are below the precision of a probability near 1.
    assert select("entropy", torch.tensor([[40.0, 0.0], [38.0, 0.0], [39.0, 0.0]]), 3) == [1, 2, 0]


def test_uncertainties_separate_little_evidence_from_conflict() -> None:
    nothing, conflict, sure = [0.1, 0.1, 0.1], [50.0, 50.0, 50.0], [200.0, 0.5, 0.5]
    z = log_alpha(sure, nothing, conflict)
    assert select("u_dis", z, 1) == [1]
    assert select("u_data", z, 1) == [2]
    # The total uncertainty is the same, so entropy cannot separate them.
    assert sorted(select("entropy", z, 2)) == [1, 2]


def test_duc_takes_high_u_data_among_high_u_dis() -> None:
    z = log_alpha(
        [90.0, 90.0],  # high U_data, low U_dis: dropped in the first round
        [0.2, 0.02],  # high U_dis
        [0.6, 0.5],  # high U_dis, and the highest U_data of these
        [0.3, 0.05],  # high U_dis
        [80.0, 1.0],  # both low
    )
    assert select("duc", z, 1, kappa=3) == [2]
    assert select("duc", z, 1, kappa=1) == select("u_dis", z, 1)
    assert select("duc", z, 1, kappa=5) == select("u_data", z, 1) == [0]
    assert select("duc", z, 1, kappa=5, order="data_dis") == select("u_dis", z, 1)
    assert select("duc", z, 1, kappa=1, order="data_dis") == [0]
    assert select("duc", z, 1, kappa=3, epsilon=1e-7) == [2]
    # With a large epsilon, the first round takes the lowest U_data: 0.10, 0.06 and 0.05.
    assert select("duc", z, 3, kappa=1, epsilon=1e6) == [3, 4, 1]


def test_duc_passes_kappa_times_budget_rounded_up() -> None:
    z = log_alpha(*[[0.01 * (i + 1)] * 2 for i in range(10)])  # U_dis falls with i, U_data rises
    assert select("duc", z, 2, kappa=2.4) == [4, 3]  # ceil(4.8) = 5 pass


def test_published_first_round_is_a_fraction_of_the_pool() -> None:
    # Ten candidates and no labelled samples: kappa 2 times 20 % of the pool are four, for any budget.
    z = torch.tensor([[4.0 - n / 2, 4.0 - n / 2 - (n % 3)] for n in range(10)])
    assert select("duc", z, 1, kappa=2, pool_fraction=0.2) == select("duc", z, 1, kappa=4)
    assert select("duc", z, 2, kappa=2, pool_fraction=0.2) == select("duc", z, 2, kappa=2)
    # At least the budget.
    assert select("duc", z, 3, kappa=1, pool_fraction=0.1) == select("duc", z, 3, kappa=1)


def reference_scores(z: Tensor, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """Impurity and mean entropy of each window, and the entropy of its centre, by RIPU's definitions."""
    classes, height, width = z.shape
    p, predicted = z.softmax(0), z.argmax(0)
    entropy = -(p * p.log()).sum(0)
    impurity, mean_entropy = torch.zeros_like(entropy), torch.zeros_like(entropy)
    for y in range(height):
        for x in range(width):
            window = slice(max(0, y - radius), y + radius + 1), slice(max(0, x - radius), x + radius + 1)
            _, counts = predicted[window].unique(return_counts=True)
            share = counts / counts.sum()
            impurity[y, x] = -(share * share.log()).sum() / math.log(classes)
            mean_entropy[y, x] = entropy[window].mean()
    return impurity, mean_entropy, entropy


def ranked_and_apart(score: Tensor) -> list[tuple[int, int]]:
    """Pixels by their score, without those near a better one."""
    apart = list[tuple[int, int]]()
    for position in score.flatten().argsort(descending=True).tolist():
        y, x = divmod(position, score.shape[1])
        if all(max(abs(y - v), abs(x - u)) > 2 for v, u in apart):
            apart.append((y, x))
    return apart


@pytest.mark.parametrize("seed", range(3))
def test_ripu_takes_the_highest_products(seed: int) -> None:
    z = torch.randn(4, 9, 13, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    impurity, mean_entropy, _ = reference_scores(z, 1)
    expected = [
        (i, j)
        for y, x in ranked_and_apart(impurity * mean_entropy)
        for i in range(max(0, y - 1), min(9, y + 2))
        for j in range(max(0, x - 1), min(13, x + 2))
    ]
    assert select_pixels("ripu", z, 31, Unit("region")) == expected[:31]
    impurity, _, entropy = reference_scores(z, 2)
    assert (
        select_pixels("ripu_points", z, 5, Unit("pixel"), radius=2)
        == ranked_and_apart(impurity * entropy)[:5]
    )


def published_rounds(scores: list[Tensor], count: int, label_radius: int) -> list[list[tuple[int, int]]]:
    """Pixels of each round as published: one maximum after the other; blocked windows stay blocked."""
    blocked, rounds = torch.zeros_like(scores[0], dtype=torch.bool), []
    for score in scores:
        pixels = list[tuple[int, int]]()
        for _ in range(count):
            y, x = divmod(int(score.masked_fill(blocked, -1).argmax()), score.shape[1])
            blocked[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = True
            pixels += [
                (i, j)
                for i in range(max(0, y - label_radius), min(len(score), y + label_radius + 1))
                for j in range(max(0, x - label_radius), min(score.shape[1], x + label_radius + 1))
            ]
        assert not blocked.all()
        rounds.append(pixels)
    return rounds


@pytest.mark.parametrize("unit", ["pixel", "region"])
def test_ripu_keeps_windows_of_earlier_rounds_blocked(unit: Any) -> None:
    # The maps of the three rounds are alike, so the best places are next to earlier picks.
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(4, 15, 20, generator=generator, dtype=torch.float64) * 2
    maps = [first + torch.randn(first.shape, generator=generator) / 5 for _ in range(3)]
    scores = list[Tensor]()
    for z in maps:
        impurity, mean_entropy, entropy = reference_scores(z, 1 if unit == "region" else 2)
        scores.append(impurity * (mean_entropy if unit == "region" else entropy))
    name, params = ("ripu", {}) if unit == "region" else ("ripu_points", {"radius": 2})
    known_labels = torch.full((15, 20), UNLABELLED, dtype=torch.int8)
    known_labels[:, 0] = VOID  # never acquired: blocks nothing, but cannot be picked
    acquired = torch.zeros(15, 20, dtype=torch.bool)
    for score in scores:
        score[:, 0] = 0
    for z, expected in zip(maps, published_rounds(scores, 4, int(unit == "region")), strict=True):
        open_pixels = [(y, x) for y, x in expected if x > 0]
        found = select_pixels(
            name, z, len(open_pixels), Unit(unit), known_labels=known_labels, acquired=acquired, **params
        )
        assert found == open_pixels
        for number, (y, x) in enumerate(found):
            acquired[y, x] = True
            known_labels[y, x] = VOID if number % 2 else 1  # the annotator may answer that no class applies
