"""Coverage against a slow reference written from its formula, and its behaviour on hand-made pools."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from query_pools import image_table, make_context, normal, seeded
from torch import Tensor

from ducats.acquisition.queries import QUERIES, coverage
from ducats.acquisition.queries.distances import lazy_greedy
from ducats.acquisition.queries.subsampling import subsample_candidates
from ducats.acquisition.samples import SampleTable, run_query
from ducats.acquisition.units import select_in_image
from ducats.data.domain import UNLABELLED, VOID
from ducats.settings import Unit

SHAPE = (6, 8)


def image_samples(count: int, seed: int = 0, start: int = 0, width: int = 5) -> SampleTable:
    columns = {
        "features": normal(count, width, seed=seed, dtype=torch.float32) + 0.5,
        "margin": torch.rand(count, generator=seeded(seed + 100)),
        "entropy": torch.rand(count, generator=seeded(seed + 200)),
    }
    return image_table(count, {**columns}, start)


def pixel_samples(count: int = 48, shape: tuple[int, int] = SHAPE) -> SampleTable:
    samples, position = image_samples(count), torch.arange(count)
    return SampleTable(torch.full_like(position, 3), position, samples.columns, shape)


def select(
    samples: SampleTable, budget: int, labelled: SampleTable | None = None, **params: Any
) -> list[int]:
    context = make_context(samples, budget, labelled=labelled)
    picks: list[int] = run_query(QUERIES["coverage"].bind(params).fn, context).tolist()
    return picks


def kernel_reference(
    samples: SampleTable, other: SampleTable, mean: Any, temperature: float
) -> np.ndarray[Any, Any]:
    """k(i, j) of all pairs, one by one."""
    kernel = np.zeros((len(samples), len(other)))
    for i, f in enumerate(samples.features.double().numpy() - mean):
        for j, g in enumerate(other.features.double().numpy() - mean):
            cosine = f @ g / max(np.linalg.norm(f) * np.linalg.norm(g), 1e-12)
            kernel[i, j] = math.exp((cosine - 1) / temperature)
    return kernel


def reference(
    samples: SampleTable,
    budget: int,
    labelled: SampleTable | None = None,
    *,
    uncertainty: str = "margin",
    power: float = 1.0,
    temperature: float,
    centred: bool = True,
    weights: Any = None,
) -> list[int]:
    """Picks of the formula, with all gains computed after every pick."""
    mean = samples.features.double().numpy().mean(0) if centred else 0.0
    column = samples.column(uncertainty).double().numpy()
    u = ((1 - column if uncertainty == "margin" else column) + 1e-6) ** power
    u = u if weights is None else u * weights
    kernel = kernel_reference(samples, samples, mean, temperature)
    covered = np.zeros(len(samples))
    if labelled is not None and len(labelled):
        covered = kernel_reference(samples, labelled, mean, temperature).max(1)
    picks = list[int]()
    for _ in range(budget):
        gains = np.array(
            [
                -1.0 if j in picks else float((u * np.maximum(0, kernel[:, j] - covered)).sum())
                for j in range(len(samples))
            ]
        )
        picks.append(int(np.argmax(gains >= gains.max() - 1e-9)))  # with equal weights, two may tie exactly
        covered = np.maximum(covered, kernel[:, picks[-1]])
    return picks


@pytest.mark.parametrize("n_labelled", [0, 6])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.2},
        {"temperature": 0.2, "power": 0.0},
        {"temperature": 0.1, "power": 2.0, "centred": False},
        {"temperature": 1.0, "uncertainty": "entropy"},
    ],
)
def test_images_match_the_formula(params: dict[str, Any], n_labelled: int) -> None:
    samples, labelled = image_samples(40), image_samples(n_labelled, 1, 40) if n_labelled else None
    assert select(samples, 12, labelled, **params) == reference(samples, 12, labelled, **params)


@pytest.mark.parametrize("acquired", [False, True])
def test_pixels_match_the_formula(acquired: bool) -> None:
    everything = pixel_samples()
    samples = everything[torch.arange(0, 48, 2)]
    known = everything[torch.tensor([5, 17, 41] if acquired else [], dtype=torch.long)]
    context = replace(make_context(samples, 9), acquired=known)
    picks = QUERIES["coverage"].fn(context, temperature=0.3).tolist()
    assert picks == reference(samples, 9, known, temperature=0.3)


def test_the_default_temperature_depends_on_the_task() -> None:
    assert select(image_samples(40), 9) == reference(image_samples(40), 9, temperature=0.2)
    assert select(pixel_samples(), 9) == reference(pixel_samples(), 9, temperature=0.1)


def test_sampled_images_are_weighted_by_their_inclusion_probability() -> None:
    samples = image_samples(90)
    order, inclusion_probability = subsample_candidates(make_context(samples, 3), 30, "entropy_weighted")
    assert inclusion_probability is not None
    expected = reference(samples[order], 3, temperature=0.2, weights=1 / inclusion_probability.numpy())
    assert select(samples, 3, subsample=30) == order[torch.tensor(expected)].tolist()
    # A subsample has at least 10 times the budget.
    assert select(samples, 3, subsample=1) == select(samples, 3, subsample=30)
    assert select(samples, 3, subsample=90) == select(samples, 3, subsample=None) == select(samples, 3)


def gains_of(samples: SampleTable) -> coverage._CoverageGains:
    directions = coverage._directions(samples.features, samples.features.mean(0))
    return coverage._CoverageGains(directions, 1 - samples.column("margin").double(), 0.2)


def test_gains_only_fall_and_of_a_picked_sample_to_zero() -> None:
    samples, everything = image_samples(200), torch.arange(200)
    gains = gains_of(samples)
    before = gains.of_all()
    torch.testing.assert_close(gains.of(everything), before, rtol=1e-5, atol=1e-6)
    for pick in (3, 150, 77, 4):
        gains.add(pick)
        after = gains.of(everything)
        assert bool((after <= before + 1e-6).all())
        assert float(after[pick]) == pytest.approx(0, abs=1e-5)
        torch.testing.assert_close(gains.of_all(), after, rtol=1e-5, atol=1e-6)
        before = after


def test_lazy_selection_equals_full_recomputation() -> None:
    samples, everything = image_samples(300), torch.arange(300)
    full, picks = gains_of(samples), list[int]()
    for _ in range(60):
        values = full.of(everything)
        values[picks] = -1
        picks.append(int(values.argmax()))
        full.add(picks[-1])
    lazy = gains_of(samples)
    assert lazy_greedy(samples, 60, lazy.of_all(), lazy.of, lazy.add).tolist() == picks


def test_nearly_equal_values_are_ties_and_go_to_the_first() -> None:
    values = torch.tensor([0.1, 1 - 1e-7, 0.5, 1.0], dtype=torch.float64)
    samples = image_table(4, {})

    def picks(tolerance: float) -> list[int]:
        found = lazy_greedy(samples, 2, values.clone(), values.__getitem__, print, tie_tolerance=tolerance)
        return found.tolist()

    assert picks(1e-6) == [1, 3]
    assert picks(0.0) == [3, 1]


def test_ties_go_to_the_lower_location() -> None:
    features = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [0, 1]])
    samples = image_table(5, {"features": features, "margin": torch.zeros(5), "entropy": torch.ones(5)})
    assert select(samples, 4, centred=False) == [2, 0, 1, 3]  # a picked direction gains nothing again
    mixed = torch.tensor([4, 1, 3, 0, 2])
    assert mixed[select(samples[mixed], 4, centred=False)].tolist() == [2, 0, 1, 3]


def test_labelled_samples_are_not_covered_twice() -> None:
    # Two groups; the larger one has a label.
    features = torch.tensor([[1.0, 0]] * 6 + [[0, 1.0]] * 3)
    columns = {"features": features, "margin": torch.zeros(9), "entropy": torch.ones(9)}
    samples = image_table(9, {**columns})
    candidates, labelled = samples[torch.arange(1, 9)], samples[torch.arange(1)]
    assert select(candidates, 1, centred=False) == [0]
    assert select(candidates, 1, labelled, centred=False) == [5]


def test_uncertain_samples_attract_picks_and_power_zero_ignores_them() -> None:
    features = torch.tensor([[1.0, 0]] * 4 + [[0, 1.0]] * 2)
    margin = torch.tensor([0.95] * 4 + [0.0] * 2)
    samples = image_table(6, {"features": features, "margin": margin, "entropy": 1 - margin})
    for uncertainty in ("margin", "entropy"):
        assert select(samples, 1, uncertainty=uncertainty) == [4]
    assert select(samples, 1, power=0.0) == [0]


@pytest.mark.parametrize("kind", ["equal", "zero", "one zero", "certain"])
def test_degenerate_pools_spend_the_budget(kind: str) -> None:
    samples = image_samples(20)
    columns = {name: samples.column(name) for name in samples.columns}
    if kind == "certain":
        columns["margin"] = torch.ones(20)
        assert select(image_table(20, {**columns}), 5) == select(image_table(20, {**columns}), 5, power=0.0)
    features = columns["features"].clone()
    if kind in ("equal", "zero"):
        features[:] = 0.3 if kind == "equal" else 0.0
    elif kind == "one zero":
        features[0] = 0.0
    picks = select(image_table(20, {**columns, "features": features}), 5)
    assert len(set(picks)) == 5
    assert kind not in ("equal", "zero") or sorted(picks) == picks  # all gains are equal, then zero


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_of_the_columns(dtype: torch.dtype) -> None:
    samples = image_samples(30)
    cast = replace(samples, columns={name: samples.column(name).to(dtype) for name in samples.columns})
    exact = replace(samples, columns={name: cast.column(name).float() for name in samples.columns})
    assert select(cast, 8) == select(exact, 8)


def test_missing_values_raise() -> None:
    samples = image_samples(20)
    for name, message in (("features", "non-finite features"), ("margin", "'margin' contains NaN")):
        column = samples.column(name).clone()
        column[3] = math.nan
        with pytest.raises(ValueError, match=message):
            select(replace(samples, columns={**samples.columns, name: column}), 3)


def test_large_images_are_covered_on_a_grid() -> None:
    shape = (20, 30)
    samples = pixel_samples(600, shape)
    picks = select(samples, 30, max_pixels=40)
    y, x = (samples.position[picks] // shape[1]).tolist(), (samples.position[picks] % shape[1]).tolist()
    assert set(y) <= {2, 6, 10, 14, 18}
    assert set(x) <= {2, 6, 10, 14, 18, 22, 26}
    # More than the grid: all of it, and others.
    assert len(set(select(samples, 100, max_pixels=40))) == 100
    # Superpixels are few: all of them compete.
    few = samples[torch.arange(0, 600, 20)]
    assert select(few, 5, max_pixels=40) == reference(few, 5, temperature=0.1)


def test_picks_beyond_the_greedy_ones_are_drawn_by_uncertainty() -> None:
    samples = pixel_samples(600, (20, 30))
    margin = torch.ones(600)
    margin[::2] = 0.0
    samples = replace(samples, columns={**samples.columns, "margin": margin})
    picks = select(samples, 100, max_greedy=10, max_pixels=40)
    assert picks[:10] == select(samples, 10, max_pixels=40)
    assert all(pick % 2 == 0 for pick in picks[10:])
    row = {pick // 30 for pick in picks[10:]}
    assert len(row) == 20  # from all pixels, not from the grid alone


def test_drawn_regions_overlap_no_pick() -> None:
    samples = replace(pixel_samples(600, (20, 30)), min_distance=2)
    picks = torch.tensor(select(samples, 24, max_greedy=8))
    y, x = picks // 30, picks % 30
    distance = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs())
    assert int((distance + 99 * torch.eye(24).long()).min()) > 2


def flat_image() -> dict[str, Any]:
    """An image in which all pixels are alike: only the distance counts."""
    return {
        "z": torch.zeros(2, 8, 12),
        "features": torch.ones(3, 2, 3),
        "image": 0,
        "pixels": None,
        "generator": seeded(),
    }


def test_void_answers_cover_their_surroundings() -> None:
    known = torch.full((8, 12), UNLABELLED, dtype=torch.int8)
    known[4, 1] = VOID
    features = torch.eye(3)[[0, 0, 1]].T[:, None].expand(3, 2, 3)  # two thirds of the image are alike

    def picked_column(acquired: Tensor) -> int:
        image = flat_image() | {"features": features}
        query = QUERIES["coverage"].bind({})
        found = select_in_image(
            query, Unit("pixel"), known_labels=known, acquired=acquired, budget=1, **image
        )
        return int(found.position) % 12

    assert picked_column(torch.zeros_like(known, dtype=torch.bool)) < 6
    assert picked_column(known == VOID) > 6


def test_regions_of_one_round_remember_each_other() -> None:
    """Regions at the border are smaller, so the query is called again for the rest of the budget."""
    known = torch.full((8, 12), UNLABELLED, dtype=torch.int8)
    calls = list[int]()

    def corner_first(context: Any) -> Tensor:
        calls.append(len(context.acquired))
        return torch.arange(context.budget)

    query = replace(QUERIES["coverage"], fn=corner_first)
    select_in_image(query, Unit("region"), known_labels=known, budget=9, **flat_image())
    assert calls[:2] == [0, 4]  # the first region, in the corner, has 4 of its 9 pixels
