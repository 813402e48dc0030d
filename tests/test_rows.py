import pytest
import torch

from ducats.randomness import draw_per_address, fork
from ducats.rows import Rows, best


def rows_of(image: list[int]) -> Rows:
    return Rows(torch.tensor(image), torch.zeros(len(image), dtype=torch.long), {})


def test_best_is_exact_where_scores_tie() -> None:
    score = torch.tensor([0.5, 1.0, 0.5, 0.5, float("-inf")])
    rows = rows_of([40, 10, 30, 20, 0])
    assert best(score, 3, rows).tolist() == [1, 3, 2]
    assert best(score, 9, rows).tolist() == [1, 3, 2, 0, 4]
    assert best(score, 0, rows).tolist() == []


def test_best_follows_a_permutation() -> None:
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(0, 20, (500,), generator=generator).double()
    rows = rows_of(list(range(500)))
    mixed = torch.randperm(500, generator=generator)
    assert torch.equal(mixed[best(score[mixed], 77, rows[mixed])], best(score, 77, rows))


def test_a_nan_score_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        best(torch.tensor([0.0, float("nan")]), 1, rows_of([0, 1]))


def test_draws_depend_on_the_address_alone() -> None:
    image = torch.arange(2000)
    position = image % 7
    draws = draw_per_address(fork(0, "x"), image, position)
    mixed = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw_per_address(fork(0, "x"), image[mixed], position[mixed]), draws[mixed])
    assert torch.equal(draw_per_address(fork(0, "x"), image[:10], position[:10]), draws[:10])
    assert not torch.equal(draw_per_address(fork(1, "x"), image, position), draws)


def test_draws_are_uniform_and_unrelated() -> None:
    image = torch.arange(20000)
    draws = draw_per_address(fork(0, "x"), image, torch.zeros_like(image))
    counts = torch.histc(draws.float(), 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 45  # chi-square, 19 degrees: p = 0.001 at 43.8
    other = draw_per_address(fork(0, "x"), image, torch.ones_like(image))
    assert abs(float(torch.corrcoef(torch.stack([draws, other]))[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([draws[1:], draws[:-1]]))[0, 1])) < 0.03
