import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.randomness import make_generator, uniform_per_location
from ducats.samples import LazyColumn, QueryContext, SampleTable, run_query, top_k


def rows_of(image: list[int]) -> SampleTable:
    return SampleTable(torch.tensor(image), torch.zeros(len(image), dtype=torch.long), {})


def test_top_k_breaks_ties_by_location() -> None:
    score = torch.tensor([0.5, 1.0, 0.5, 0.5, float("-inf")])
    rows = rows_of([40, 10, 30, 20, 0])
    assert top_k(score, 3, rows).tolist() == [1, 3, 2]
    assert top_k(score, 9, rows).tolist() == [1, 3, 2, 0, 4]
    assert top_k(score, 0, rows).tolist() == []


def test_top_k_does_not_depend_on_the_order_of_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(0, 20, (500,), generator=generator).double()
    rows = rows_of(list(range(500)))
    mixed = torch.randperm(500, generator=generator)
    assert torch.equal(mixed[top_k(score[mixed], 77, rows[mixed])], top_k(score, 77, rows))


def test_a_nan_score_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        top_k(torch.tensor([0.0, float("nan")]), 1, rows_of([0, 1]))


def test_draws_depend_on_the_location_only() -> None:
    image = torch.arange(2000)
    position = image % 7
    draws = uniform_per_location(make_generator(0, "x"), image, position)
    mixed = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(
        uniform_per_location(make_generator(0, "x"), image[mixed], position[mixed]), draws[mixed]
    )
    assert torch.equal(uniform_per_location(make_generator(0, "x"), image[:10], position[:10]), draws[:10])
    assert not torch.equal(uniform_per_location(make_generator(1, "x"), image, position), draws)


def test_draws_are_uniform_and_uncorrelated() -> None:
    image = torch.arange(20000)
    draws = uniform_per_location(make_generator(0, "x"), image, torch.zeros_like(image))
    counts = torch.histc(draws.float(), 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 45  # chi-square, 19 degrees: p = 0.001 at 43.8
    other = uniform_per_location(make_generator(0, "x"), image, torch.ones_like(image))
    assert abs(float(torch.corrcoef(torch.stack([draws, other]))[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([draws[1:], draws[:-1]]))[0, 1])) < 0.03


def old_draw(generator: torch.Generator, image: Tensor, position: Tensor) -> Tensor:
    """The same with NumPy's unsigned integers, as in earlier versions."""

    def mix(x: np.typing.NDArray[np.uint64]) -> np.typing.NDArray[np.uint64]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    salt = np.uint64(int(torch.randint(0, 2**62, (), generator=generator)))
    with np.errstate(over="ignore"):
        bits = mix(image.numpy().astype(np.uint64) + salt)
        bits = mix(bits ^ mix(position.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)))
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def test_draws_match_unsigned_integer_arithmetic() -> None:
    image, position = torch.arange(3000) // 7, torch.arange(3000) * 1_000_003
    draws = uniform_per_location(make_generator(5, "x"), image, position)
    assert torch.equal(draws, old_draw(make_generator(5, "x"), image, position))
    assert 0 <= float(draws.min()) < float(draws.max()) < 1


def old_best(score: Tensor, count: int, rows: SampleTable) -> Tensor:
    order = np.lexsort((rows.position.numpy(), rows.image.numpy(), -score.double().numpy()))
    return torch.from_numpy(order[:count].copy())


@pytest.mark.parametrize("count", [1, 13, 399, 400, 500])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_top_k_matches_a_full_sort(count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(levels + count)
    score = torch.randint(-levels, levels, (400,), generator=generator).float() / levels
    score[::31] = -0.0
    score[5::31] = -math.inf
    address = torch.randperm(400, generator=generator)
    rows = SampleTable(address // 20, address % 20, {})
    assert torch.equal(top_k(score, count, rows), old_best(score, count, rows))


def greedily(score: Tensor, count: int, rows: SampleTable, apart: int) -> list[int]:
    """One by one: take the best row that is not near a pick; then repeat among the skipped rows."""
    assert rows.shape is not None
    width, taken = rows.shape[1], list[int]()
    order = old_best(score, len(score), rows).tolist()
    while len(taken) < min(count, len(order)):
        layer: list[int] = []
        for row in order:
            y, x = divmod(int(rows.position[row]), width)
            near = False
            for other in layer:
                there = divmod(int(rows.position[other]), width)
                same = rows.image[row] == rows.image[other]
                near |= bool(same) and max(abs(y - there[0]), abs(x - there[1])) <= apart
            if row not in taken and not near and len(taken) + len(layer) < count:
                layer.append(row)
        taken += layer
    return taken


@pytest.mark.parametrize("apart", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("count", [1, 5, 12, 30, 90])
@pytest.mark.parametrize("levels", [3, 1000])
def test_min_distance_matches_a_sequential_loop(apart: int, count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(apart * count + levels)
    shape = (9, 11)
    where = torch.randperm(2 * 99, generator=generator)[:150]  # two images, some pixels missing
    rows = SampleTable(where // 99 * 3, where % 99, {}, shape)
    score = torch.randint(0, levels, (150,), generator=generator).float()
    assert top_k(score, count, rows, apart).tolist() == greedily(score, count, rows, apart)
    marked = SampleTable(rows.image, rows.position, {}, shape, apart)
    assert torch.equal(top_k(score, count, marked), top_k(score, count, rows, apart))
    assert torch.equal(top_k(score, count, marked, 1), top_k(score, count, rows, apart))


def test_min_distance_on_a_slope() -> None:
    position = torch.arange(50)
    rows = SampleTable(torch.zeros_like(position), position, {}, (1, 50))
    assert top_k(position.float(), 9, rows, min_distance=4).tolist() == list(range(49, 5, -5))


def test_min_distance_ignores_images() -> None:
    rows = rows_of([1, 2, 3])
    assert top_k(torch.tensor([1.0, 3.0, 2.0]), 3, rows, min_distance=9).tolist() == [1, 2, 0]


def test_lazy_column_is_computed_for_remaining_rows_only() -> None:
    read: list[int] = []

    def compute(position: Tensor) -> Tensor:
        read.append(len(position))
        return position * 2.0

    position = torch.tensor([7, 5, 3, 1])
    rows = SampleTable(
        torch.zeros_like(position), position, {"double": LazyColumn(compute, position)}, (1, 9), 2
    )
    some = rows[torch.tensor([3, 0])][torch.tensor([1])]
    assert (some.shape, some.min_distance, read) == ((1, 9), 2, [])
    assert some.column("double").tolist() == [14.0]
    assert read == [1]


@pytest.mark.parametrize(
    ("picks", "message"),
    [
        (torch.tensor([0, 0]), "returned an index more than once"),
        ([0.5, 1.0], "returned non-integer indices"),
        ([0, 3], "returned an index outside 0 … 2"),
        ([-1, 0], "returned an index outside 0 … 2"),
        ([1], "returned 1 indices instead of 2"),
    ],
)
def test_invalid_picks_are_refused(picks: object, message: str) -> None:
    def mine(slate: QueryContext, *, knob: int) -> object:
        return picks

    rows = rows_of([4, 5, 6])
    slate = QueryContext(rows, rows[torch.arange(0)], 2, torch.Generator())
    with pytest.raises(UserError, match=f"the query mine {message}"):
        run_query(partial(mine, knob=1), slate)


@pytest.mark.parametrize("picks", [[2, 0], np.array([0, 2])[::-1], torch.tensor([[2, 0]]), (2, 0)])
def test_query_may_return_any_sequence(picks: object) -> None:
    rows = rows_of([4, 5, 6])
    slate = QueryContext(rows, rows[torch.arange(0)], 2, torch.Generator())
    assert run_query(lambda slate: picks, slate).tolist() == [2, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_gives_the_same_picks() -> None:
    generator = torch.Generator().manual_seed(0)
    position = torch.randperm(300 * 200, generator=generator)[:50_000]
    score = torch.randint(0, 900, (50_000,), generator=generator).float() - 450
    rows = SampleTable(torch.zeros_like(position), position, {}, (300, 200))
    there = SampleTable(rows.image.cuda(), rows.position.cuda(), {}, (300, 200))
    for apart in (0, 2, 9):
        found = top_k(score.cuda(), 700, there, apart)
        assert found.is_cuda
        assert torch.equal(found.cpu(), top_k(score, 700, rows, apart))
    here = uniform_per_location(make_generator(0, "x"), rows.image, rows.position)
    assert torch.equal(uniform_per_location(make_generator(0, "x"), there.image, there.position).cpu(), here)
