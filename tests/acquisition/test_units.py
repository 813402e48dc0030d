"""Selection within an image: budgets are spent exactly, in the right units, and never twice."""

import math
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.criteria import CRITERIA, IMAGE_COLUMNS, get_criterion
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import QueryContext, top_k
from ducats.acquisition.units import PixelSelection, image_columns, select_in_image
from ducats.acquisition.units.pixel_columns import PixelColumns
from ducats.acquisition.units.superpixels import compute_superpixels
from ducats.data.domain import UNLABELLED, VOID
from ducats.settings import Unit
from ducats.utils.errors import UserError

SHAPE = (15, 20)
HEAD = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))
UNITS = [Unit("pixel"), Unit("region"), Unit("region", region_side=5), Unit("superpixel", n_superpixels=12)]


def maps(seed: int = 0, classes: int = 4) -> Tensor:
    coarse = torch.randn(1, classes, 5, 6, generator=torch.Generator().manual_seed(seed)) * 3
    return F.interpolate(coarse, SHAPE, mode="bilinear", align_corners=True)[0]


def photo() -> Tensor:
    coarse = torch.rand(1, 3, 3, 4, generator=torch.Generator().manual_seed(9)) * 255
    return F.interpolate(coarse, SHAPE).to(torch.uint8)[0]


def labels(fill: int = UNLABELLED) -> Tensor:
    return torch.full(SHAPE, fill, dtype=torch.int8)


def some() -> Tensor:
    """Return a label map with some labelled and some void pixels."""
    uniforms = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    return torch.where(uniforms < 0.2, 1, torch.where(uniforms < 0.3, VOID, UNLABELLED)).to(torch.int8)


def probe_columns() -> dict[str, Tensor]:
    """Return probe columns on their own grid."""
    generator = torch.Generator().manual_seed(4)
    return {
        "domain": torch.rand(3, 4, generator=generator),
        "critic": torch.randn(3, 4, generator=generator),
        "committee": torch.randn(3, 4, 3, 4, generator=generator).softmax(1),
    }


def select_in_test_image(
    query: QuerySpec, unit: Unit, known_labels: Tensor, budget: int, device: str = "cpu", **overrides: Any
) -> PixelSelection:
    kwargs: dict[str, Any] = {
        "known_labels": known_labels.to(device),
        "z": maps().to(device) if query.needs else None,
        "features": torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(3)).to(device),
        "pixels": photo(),
        "image": 7,
        "generator": torch.Generator().manual_seed(1),
        "extras": {name: column.to(device) for name, column in probe_columns().items()},
        "head": HEAD.to(device) if query.needs_head else None,
    }
    return select_in_image(query, unit, budget=budget, **(kwargs | overrides))


def units_of(picked: PixelSelection) -> list[list[int]]:
    assert picked.unit_sizes is not None
    return [unit.tolist() for unit in picked.position.split(picked.unit_sizes.tolist())]


# Queries that select within an image; the others select whole images.
WITHIN_IMAGE_QUERIES = [
    n for n, query in QUERIES.items() if not any(need in IMAGE_COLUMNS for need in query.needs)
]
every_pair = pytest.mark.parametrize(
    ("name", "unit"),
    # Impurity is undefined for a pixel.
    [(n, u) for n in WITHIN_IMAGE_QUERIES for u in UNITS if (n, u.unit) != ("ripu", "pixel")],
)


@every_pair
@pytest.mark.parametrize(
    ("budget", "known_labels"),
    [(0, labels()), (1, some()), (37, labels()), (37, some()), (10**6, some()), (5, labels(VOID))],
    ids=["none", "one", "37", "37, some known", "all, some known", "only void"],
)
def test_budget_is_spent_exactly(name: str, unit: Unit, budget: int, known_labels: Tensor) -> None:
    before, open_ = known_labels.clone(), (known_labels == UNLABELLED).flatten()
    picked = select_in_test_image(QUERIES[name], unit, known_labels, budget)
    position = picked.position
    assert torch.equal(known_labels, before)
    assert position.dtype == torch.long
    assert len(position.unique()) == len(position)
    assert bool(open_[position].all())
    assert len(position) == min(budget, int(open_.sum()))
    assert (picked.unit_sizes is None) == (unit.unit == "pixel")
    if picked.unit_sizes is not None:
        assert int(picked.unit_sizes.sum()) == len(position)
        assert all(size >= 1 for size in picked.unit_sizes)
    if budget == 37:
        again = select_in_test_image(QUERIES[name], unit, known_labels, budget)
        assert torch.equal(again.position, position)


@pytest.mark.parametrize("name", [n for n in WITHIN_IMAGE_QUERIES if n != "ripu"])
def test_pixels_match_the_query_on_a_table(name: str) -> None:
    """Compare with the same query on precomputed columns."""
    query, known_labels = QUERIES[name], some()
    position = (known_labels.flatten() == UNLABELLED).nonzero().squeeze(1)
    known = (known_labels.flatten() >= 0).nonzero().squeeze(1)
    contexts: list[QueryContext] = []

    def recording_query(context: QueryContext) -> Tensor:
        contexts.append(context)
        return query.fn(context)

    picked = select_in_test_image(replace(query, fn=recording_query), Unit("pixel"), known_labels, 11)
    (context,) = contexts
    assert torch.equal(context.candidates.position, position)
    assert torch.equal(context.labelled.position, known)
    assert context.candidates.image.unique().tolist() == [7]
    assert context.candidates.shape == SHAPE
    for need in query.needs:
        if need in CRITERIA:
            expected = get_criterion(need).fn(maps()[None]).flatten()
            torch.testing.assert_close(context.candidates.column(need), expected[position])
            torch.testing.assert_close(context.labelled.column(need), expected[known])
    own = QueryContext(
        context.candidates, context.labelled, 11, torch.Generator().manual_seed(1), head=context.head
    )
    assert torch.equal(picked.position, position[query.fn(own)])


def test_second_round_computes_only_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    u_data = CRITERIA["u_data"]

    def counted(z: Tensor) -> Tensor:
        read.append(len(z))
        return u_data.fn(z)

    criteria = {**CRITERIA, "u_data": replace(u_data, fn=counted)}
    monkeypatch.setattr("ducats.acquisition.units.pixel_columns.get_criterion", criteria.__getitem__)
    select_in_test_image(QUERIES["duc"].bind({"kappa": 3}), Unit("pixel"), labels(), 10)
    assert read == [30]


def regions_of(picked: PixelSelection) -> list[list[tuple[int, int]]]:
    return [[divmod(position, SHAPE[1]) for position in unit] for unit in units_of(picked)]


@pytest.mark.parametrize("name", ["random", "entropy", "duc", "ripu"])
@pytest.mark.parametrize("side", [3, 5])
def test_regions_are_windows_without_overlap(name: str, side: int) -> None:
    budget = 4 * side * side + 2
    regions = regions_of(
        select_in_test_image(QUERIES[name], Unit("region", region_side=side), labels(), budget)
    )
    for region in regions[:-1]:  # the last may be truncated
        (top, left), (bottom, right) = region[0], region[-1]
        # In raster order, and complete except at the border.
        assert region == [(y, x) for y in range(top, bottom + 1) for x in range(left, right + 1)]
        assert bottom - top == side - 1 or (bottom - top < side and (top == 0 or bottom == SHAPE[0] - 1))
        assert right - left == side - 1 or (right - left < side and (left == 0 or right == SHAPE[1] - 1))
    assert sum(map(len, regions)) == budget == len({p for region in regions for p in region})


@pytest.mark.parametrize("known", [VOID, 2], ids=["known to be void", "acquired"])
def test_regions_exclude_known_pixels_and_avoid_acquired_ones(known: int) -> None:
    known_labels = labels()
    known_labels[4:8, 4:8] = known
    z = torch.zeros(2, *SHAPE)
    z[0] = 5.0
    z[0, 8, 8] = 0.0  # most uncertain pixel, so all regions with it are; the first, around (7, 7), is known
    (region,) = regions_of(select_in_test_image(QUERIES["entropy"], Unit("region"), known_labels, 6, z=z))
    if known == VOID:  # first unlabelled centre: (7, 8), whose window loses (6..7, 7)
        assert region == [(6, 8), (6, 9), (7, 8), (7, 9), (8, 7), (8, 8)]
    else:  # first centre whose window has no acquired pixel: (7, 9)
        assert region == [(6, 8), (6, 9), (6, 10), (7, 8), (7, 9), (7, 10)]


@pytest.mark.parametrize("name", ["entropy", "margin", "confidence", "u_dis", "u_data", "impurity@2"])
@pytest.mark.parametrize("unit", ["region", "set"])
def test_unit_column_is_the_mean_over_its_pixels(name: str, unit: str) -> None:
    pixel_columns, z = PixelColumns(maps().double(), None, SHAPE), maps().double()
    values = get_criterion(name).fn(z[None])[0].double()
    values = values.exp() if name == "u_dis" else values
    centres = torch.tensor([0, 25, 47, 299])
    windows = []
    for p in centres.tolist():
        y, x = divmod(p, SHAPE[1])
        rows, columns = range(max(0, y - 1), min(SHAPE[0], y + 2)), range(max(0, x - 1), min(SHAPE[1], x + 2))
        windows.append([i * SHAPE[1] + j for i in rows for j in columns])
    expected = torch.stack([values.flatten()[w].mean() for w in windows])
    expected = expected.log() if name == "u_dis" else expected
    if unit == "region":
        column = pixel_columns.for_regions((name,), 1, centres)[name]
        found = column.compute(column.position)
    else:
        found = pixel_columns.for_pixel_sets((name,), padded(windows))[name]
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)


def padded(sets: list[list[int]]) -> Tensor:
    longest = max(map(len, sets))
    return torch.tensor([s + [-1] * (longest - len(s)) for s in sets])


def test_impurity_of_a_set() -> None:
    z = torch.zeros(3, 1, 6)
    for x, c in enumerate([0, 0, 1, 2, 2, 2]):
        z[c, 0, x] = 1.0
    found = PixelColumns(z, None, (1, 6)).for_pixel_sets(
        ("impurity",), padded([[0, 1, 2], [3, 4], [0, 2, 4]])
    )["impurity"]
    two_to_one = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(3)
    assert found.tolist() == pytest.approx([two_to_one, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("name", ["z", "features", "critic", "committee"])
def test_vector_columns_of_pixels_regions_and_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    pixel_columns = PixelColumns(maps(), features, SHAPE, probe_columns())
    coarse = {"features": features, **probe_columns()}.get(name, maps())
    fine = F.interpolate(
        coarse.reshape(1, -1, *coarse.shape[-2:]), SHAPE, mode="bilinear", align_corners=True
    )
    full = fine[0].flatten(1).T.reshape(-1, *coarse.shape[:-2])
    position = torch.tensor([0, 21, 133, 299])
    near = [[0, 1, 20, 21], [0, 1, 2, 20, 21, 22, 40, 41, 42]]
    means = torch.stack([full[n].mean(0) for n in near])
    pixels = pixel_columns.for_pixels((name,), position)[name]
    regions = pixel_columns.for_regions((name,), 1, position[:2])[name]
    close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
    close(pixels.compute(position), full[position])
    close(regions.compute(position[:2]), means)
    close(pixel_columns.for_pixel_sets((name,), padded(near))[name], means)
    assert not len(pixel_columns.for_pixel_sets((name,), padded(near)[:0])[name])
    monkeypatch.setattr("ducats.acquisition.units.pixel_columns._MAX_SET_PIXELS", 1)  # one set per pass
    close(pixel_columns.for_pixel_sets((name,), padded(near))[name], means)


def test_image_columns_cover_unlabelled_pixels() -> None:
    known_labels, z = some(), maps()
    open_ = (known_labels == UNLABELLED).flatten()
    shapes = {"entropy": (1,), "u_dis": (1,), "impurity": (1,), "z": (1, 4), "features": (1, 3)}
    found = image_columns(z, torch.ones(3, 2, 2), known_labels, tuple(shapes))
    assert {n: tuple(c.shape) for n, c in found.items()} == shapes
    entropy = get_criterion("entropy").fn(z[None]).flatten()[open_].mean()
    torch.testing.assert_close(found["entropy"][0], entropy)
    share = torch.bincount(z.argmax(0).flatten()[open_], minlength=4) / open_.sum()
    torch.testing.assert_close(found["impurity"][0], -torch.xlogy(share, share).sum() / math.log(4))
    torch.testing.assert_close(found["z"][0], z.flatten(1)[:, open_].mean(1))
    # All pixels, if all are labelled.
    known_labels, u_dis = torch.zeros(SHAPE, dtype=torch.int8), CRITERIA["u_dis"].fn(maps()[None])
    expected = u_dis.exp().mean().log()
    torch.testing.assert_close(image_columns(maps(), None, known_labels, ("u_dis",))["u_dis"][0], expected)


@pytest.mark.parametrize("budget", [3, 90, 240])
def test_superpixels_are_selected_best_first_and_the_last_is_truncated(budget: int) -> None:
    superpixel_map = compute_superpixels(photo(), SHAPE, 12, 10.0).flatten()
    assert superpixel_map.unique().tolist() == list(range(int(superpixel_map.max()) + 1))
    known_labels = some()
    open_ = (known_labels == UNLABELLED).flatten()
    entropy = get_criterion("entropy").fn(maps()[None]).flatten()
    mean = {
        int(p): float(entropy[(superpixel_map == p) & open_].mean()) for p in superpixel_map[open_].unique()
    }
    picked = select_in_test_image(
        QUERIES["entropy"], Unit("superpixel", n_superpixels=12), known_labels, budget
    )
    remaining, expected_units = min(budget, int(open_.sum())), []
    for superpixel in sorted(mean, key=lambda p: -mean[p]):
        whole = ((superpixel_map == superpixel) & open_).nonzero().squeeze(1).tolist()
        if remaining:
            expected_units.append(whole[:remaining])
            remaining -= len(expected_units[-1])
    assert units_of(picked) == expected_units


def test_superpixels_of_another_size_than_the_map() -> None:
    found = compute_superpixels(photo(), (30, 41), 12, 10.0)
    assert found.shape == (30, 41)
    assert compute_superpixels(torch.zeros(1, 4, 6, dtype=torch.uint8), (4, 6), 100, 10.0).shape == (4, 6)


def test_superpixels_need_scikit_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(UserError, match=r"pip install 'ducats\[superpixels\]'"):
        select_in_test_image(QUERIES["random"], Unit("superpixel"), labels(), 5)


@pytest.mark.parametrize(
    ("query", "unit", "overrides", "message"),
    [
        ("ripu", "pixel", {}, "undefined for single pixels"),
        ("random", "image", {}, "not selected within an image"),
        ("random", "superpixel", {"pixels": None}, "pass pixels"),
        ("entropy", "pixel", {"z": None}, "z is None"),
        ("entropy", "pixel", {"z": maps()[:, 1:]}, "has shape"),
    ],
)
def test_invalid_input_is_refused(query: str, unit: Any, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        select_in_test_image(QUERIES[query], Unit(unit), labels(), 5, **overrides)


@pytest.mark.parametrize("side", [4, -1, 0])
def test_sides_of_regions_are_odd_and_positive(side: int) -> None:
    with pytest.raises(ValueError, match=r"odd|greater than or equal to 1"):
        Unit("region", region_side=side)


def test_custom_queries_are_validated_and_may_read_all_columns() -> None:
    def smallest_margin(context: QueryContext) -> Tensor:
        top = context.candidates.column("z").softmax(1).topk(2, dim=1).values
        assert context.candidates.features.shape == (len(context.candidates), 6)
        return top_k(top[:, 1] - top[:, 0], context.budget, context.candidates)

    def idle(context: QueryContext) -> list[int]:
        return []

    found, expected = (
        select_in_test_image(query, Unit("pixel"), labels(), 9).position
        for query in (QuerySpec(smallest_margin), QUERIES["margin"])
    )
    assert torch.equal(found, expected)
    with pytest.raises(UserError, match="idle returned 0 indices instead of 9"):
        select_in_test_image(QuerySpec(idle), Unit("pixel"), labels(), 9)  # type: ignore[arg-type]


@pytest.mark.gpu
@every_pair
def test_budget_is_spent_exactly_on_a_gpu(name: str, unit: Unit) -> None:
    picked = select_in_test_image(QUERIES[name], unit, some(), 40, device="cuda")
    assert not picked.position.is_cuda
    assert bool((some().flatten()[picked.position] == UNLABELLED).all())
    if name == "random":
        on_cpu = select_in_test_image(QUERIES[name], unit, some(), 40)
        assert torch.equal(picked.position, on_cpu.position)
