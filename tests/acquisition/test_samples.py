import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable, run_query, top_k
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator, uniform_per_location


def image_samples(image: list[int]) -> SampleTable:
    return SampleTable(torch.tensor(image), torch.zeros(len(image), dtype=torch.long), {})


def test_top_k_of_nothing_and_nan() -> None:
    assert top_k(torch.ones(2), 0, image_samples([0, 1])).tolist() == []
    with pytest.raises(ValueError, match="NaN"):
        top_k(torch.tensor([0.0, float("nan")]), 1, image_samples([0, 1]))


def reference_uniforms(generator: torch.Generator, image: Tensor, position: Tensor) -> Tensor:
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
    assert torch.equal(draws, reference_uniforms(make_generator(5, "x"), image, position))
    assert 0 <= float(draws.min()) < float(draws.max()) < 1


def full_sort_top_k(score: Tensor, count: int, samples: SampleTable) -> Tensor:
    order = np.lexsort((samples.position.numpy(), samples.image.numpy(), -score.double().numpy()))
    return torch.from_numpy(order[:count].copy())


@pytest.mark.parametrize("count", [1, 13, 399, 400, 500])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_top_k_matches_a_full_sort(count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(levels + count)
    score = torch.randint(-levels, levels, (400,), generator=generator).float() / levels
    score[::31] = -0.0
    score[5::31] = -math.inf
    location = torch.randperm(400, generator=generator)
    samples = SampleTable(location // 20, location % 20, {})
    assert torch.equal(top_k(score, count, samples), full_sort_top_k(score, count, samples))


def greedy_loop(
    score: Tensor, count: int, samples: SampleTable, min_distance: int, earlier: SampleTable | None = None
) -> list[int]:
    """One by one: take the best row that is not near a pick; then repeat among the skipped rows.

    The first time, rows near earlier ones are skipped, too.
    """
    assert samples.shape is not None
    width, taken = samples.shape[1], list[int]()
    order = full_sort_top_k(score, len(score), samples).tolist()
    places = list(zip(samples.image.tolist(), samples.position.tolist(), strict=True))
    blocking = [] if earlier is None else zip(earlier.image.tolist(), earlier.position.tolist(), strict=True)
    layer_places = list(blocking)
    while len(taken) < min(count, len(order)):
        layer: list[int] = []
        for row in order:
            image, position = places[row]
            y, x = divmod(position, width)
            near = any(
                image == other and max(abs(y - place // width), abs(x - place % width)) <= min_distance
                for other, place in layer_places
            )
            if row not in taken and not near and len(taken) + len(layer) < count:
                layer.append(row)
                layer_places.append(places[row])
        taken += layer
        layer_places = []
    return taken


@pytest.mark.parametrize("min_distance", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("count", [1, 5, 12, 30, 90])
@pytest.mark.parametrize("levels", [3, 1000])
def test_min_distance_matches_a_sequential_loop(min_distance: int, count: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(min_distance * count + levels)
    shape = (9, 11)
    where = torch.randperm(2 * 99, generator=generator)[:150]  # two images, some pixels missing
    samples = SampleTable(where // 99 * 3, where % 99, {}, shape)
    score = torch.randint(0, levels, (150,), generator=generator).float()
    expected = greedy_loop(score, count, samples, min_distance)
    assert top_k(score, count, samples, min_distance).tolist() == expected
    marked = SampleTable(samples.image, samples.position, {}, shape, min_distance)
    assert torch.equal(top_k(score, count, marked), top_k(score, count, samples, min_distance))
    assert torch.equal(top_k(score, count, marked, 1), top_k(score, count, samples, min_distance))


@pytest.mark.parametrize("min_distance", [1, 3, 7])
@pytest.mark.parametrize("count", [1, 12, 90])
@pytest.mark.parametrize("n_earlier", [0, 3, 40])
def test_distance_to_earlier_picks_matches_a_sequential_loop(
    min_distance: int, count: int, n_earlier: int
) -> None:
    generator = torch.Generator().manual_seed(min_distance * count + n_earlier)
    where = torch.randperm(2 * 99, generator=generator)
    # The earlier picks are at places that the table lacks; one is in an image that it lacks, too.
    earlier, places = where[:n_earlier], where[n_earlier:150]
    samples = SampleTable(places // 99 * 3, places % 99, {}, (9, 11))
    earlier_samples = SampleTable(
        torch.cat([earlier // 99 * 3, torch.tensor([2])]), torch.cat([earlier % 99, torch.tensor([50])]), {}
    )
    score = torch.randint(0, 20, (len(places),), generator=generator).float()
    expected = greedy_loop(score, count, samples, min_distance, earlier_samples)
    found = top_k(score, count, samples, min_distance, apart_from=earlier_samples)
    assert found.tolist() == expected


def test_the_best_rows_may_all_be_near_earlier_picks() -> None:
    samples = SampleTable(torch.zeros(30, dtype=torch.long), torch.arange(30), {}, (1, 30))
    earlier = SampleTable(torch.zeros(3, dtype=torch.long), torch.tensor([2, 5, 8]), {}, (1, 30))
    score = torch.arange(30, 0, -1).float()
    assert top_k(score, 2, samples, 1, apart_from=earlier).tolist() == [0, 10]
    assert top_k(score, 2, samples, 2, apart_from=earlier).tolist() == [11, 14]
    # Only places 15 and 16 are free; then the gaps are filled.
    assert top_k(score[:17], 3, samples[torch.arange(17)], 6, apart_from=earlier).tolist() == [15, 0, 7]


def test_images_are_never_near() -> None:
    score = torch.tensor([1.0, 3.0, 2.0])
    assert top_k(score, 3, image_samples([1, 2, 3]), min_distance=9).tolist() == [1, 2, 0]


def test_lazy_column_is_computed_for_remaining_rows_only() -> None:
    read: list[int] = []

    def compute(position: Tensor) -> Tensor:
        read.append(len(position))
        return position * 2.0

    position = torch.tensor([7, 5, 3, 1])
    columns = {"double": LazyColumn(compute, position)}
    samples = SampleTable(torch.zeros_like(position), position, columns, (1, 9), 2)
    some = samples[torch.tensor([3, 0])][torch.tensor([1])]
    assert (some.shape, some.min_distance, read) == ((1, 9), 2, [])
    assert some.column("double").tolist() == [14.0]
    assert read == [1]


def context_of_three(budget: int) -> QueryContext:
    samples = image_samples([4, 5, 6])
    return QueryContext(samples, samples[torch.arange(0)], budget, torch.Generator())


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
    def user_query(context: QueryContext, *, param: int) -> object:
        return picks

    with pytest.raises(UserError, match=f"the query user_query {message}"):
        run_query(partial(user_query, param=1), context_of_three(2))


@pytest.mark.parametrize("picks", [[2, 0], np.array([0, 2])[::-1], torch.tensor([[2, 0]]), (2, 0)])
def test_query_may_return_any_sequence(picks: object) -> None:
    assert run_query(lambda context: picks, context_of_three(2)).tolist() == [2, 0]


def test_a_negative_budget_is_refused() -> None:
    assert context_of_three(0).budget == 0
    with pytest.raises(ValueError, match="negative"):
        context_of_three(-1)


@pytest.mark.gpu
def test_gpu_gives_the_same_picks() -> None:
    generator = torch.Generator().manual_seed(0)
    position = torch.randperm(300 * 200, generator=generator)[:50_000]
    score = torch.randint(0, 900, (50_000,), generator=generator).float() - 450
    samples = SampleTable(torch.zeros_like(position), position, {}, (300, 200))
    on_gpu = SampleTable(samples.image.cuda(), samples.position.cuda(), {}, (300, 200))
    for min_distance in (0, 2, 9):
        found = top_k(score.cuda(), 700, on_gpu, min_distance)
        assert found.is_cuda
        assert torch.equal(found.cpu(), top_k(score, 700, samples, min_distance))
    on_cpu = uniform_per_location(make_generator(0, "x"), samples.image, samples.position)
    assert torch.equal(
        uniform_per_location(make_generator(0, "x"), on_gpu.image, on_gpu.position).cpu(), on_cpu
    )
