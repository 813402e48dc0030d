"""Every query keeps the promises of its kind, over images and over pixel rows."""

import pytest
import torch
from torch import Tensor

from ducats.queries import QUERIES
from ducats.rows import Rows, Slate


def table(count: int, needs: tuple[str, ...], pixels: bool, seed: int = 0) -> Rows:
    """Candidates with just the columns that were declared, some of them exact twins."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 5, generator=generator) * 3
    features = torch.randn(count, 8, generator=generator).relu()
    z[count // 2 :: 7], features[count // 2 :: 7] = z[0], features[0]
    where = torch.arange(count)
    image, position = (
        (torch.full_like(where, 3), where * 5) if pixels else (where * 2, torch.zeros_like(where))
    )
    return Rows(image, position, {n: c for n, c in {"z": z, "features": features}.items() if n in needs})


def slate(rows: Rows, budget: int, seed: int = 0) -> Slate:
    return Slate(rows, rows[torch.arange(0)], budget, torch.Generator().manual_seed(seed))


def ask(name: str, rows: Rows, budget: int, seed: int = 0) -> Tensor:
    return QUERIES[name].query(slate(rows, budget, seed))


every_query = pytest.mark.parametrize("name", QUERIES)
both_units = pytest.mark.parametrize("pixels", [False, True], ids=["images", "pixels"])


@every_query
@both_units
@pytest.mark.parametrize(("count", "budget"), [(60, 7), (60, 60), (5, 9), (60, 1), (60, 0), (0, 3)])
def test_distinct_within_budget_from_declared_columns(
    name: str, pixels: bool, count: int, budget: int
) -> None:
    rows = (
        table(count, QUERIES[name].needs, pixels)
        if count
        else table(60, QUERIES[name].needs, pixels)[torch.arange(0)]
    )
    picks = ask(name, rows, budget)
    assert picks.dtype == torch.long
    assert len(picks) == len(picks.unique()) == min(count, budget)
    assert not len(picks) or (picks.min() >= 0 and picks.max() < count)


@every_query
@both_units
def test_same_seed_same_picks(name: str, pixels: bool) -> None:
    rows = table(80, QUERIES[name].needs, pixels)
    assert torch.equal(ask(name, rows, 9, seed=4), ask(name, rows, 9, seed=4))


@every_query
@both_units
def test_a_permuted_pool_permutes_the_picks(name: str, pixels: bool) -> None:
    rows = table(80, QUERIES[name].needs, pixels)
    mixed = torch.randperm(80, generator=torch.Generator().manual_seed(2))
    assert torch.equal(mixed[ask(name, rows[mixed], 9)], ask(name, rows, 9))


@every_query
def test_it_says_what_it_does(name: str) -> None:
    assert len(QUERIES[name].summary) > 20
    assert "\n" not in QUERIES[name].summary


def test_random_takes_another_set_with_another_seed() -> None:
    rows = table(80, (), False)
    assert not torch.equal(ask("random", rows, 9, seed=0), ask("random", rows, 9, seed=1))


def test_undeclared_columns_are_refused() -> None:
    with pytest.raises(KeyError, match="declare it"):
        ask("entropy", table(10, (), False), 2)
