import itertools
from typing import Any

import pytest

from ducats.acquisition.budget import split_budget, split_pixels
from ducats.utils.errors import UserError

# Published: ceil(1 % of the target), five times (classification spec, section 0).
POOLS = [2427, 4365, 4439, 4357, 55388, 18073, 30572, 64979, 23862]
PUBLISHED = [25, 44, 45, 44, 554, 181, 306, 650, 239]


@pytest.mark.parametrize(("pool", "per_round"), zip(POOLS, PUBLISHED, strict=True))
def test_published_rounding(pool: int, per_round: int) -> None:
    assert split_budget("5%", pool, 5, "ceil_per_round") == (per_round,) * 5


@pytest.mark.parametrize("pool", [20, 97, 200, 1297, 55388])
@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_total_is_rounded_to_the_nearest_label(pool: int, rounds: int) -> None:
    per_round = split_budget("25%", pool, rounds)
    assert abs(sum(per_round) - 0.25 * pool) <= 0.5
    assert max(per_round) - min(per_round) <= 1


@pytest.mark.parametrize(
    ("budget", "rounds", "expected"),
    [
        (7, 3, (2, 2, 3)),
        ("65", 5, (13,) * 5),
        ("1", 1, (1,)),
        ("100%", 2, (50, 50)),
        (5, 5, (1,) * 5),  # no fewer than rounds
        ("5%", 0, ()),
    ],
)
def test_counts_and_percentages(budget: int | str, rounds: int, expected: tuple[int, ...]) -> None:
    assert split_budget(budget, 100, rounds) == expected


@pytest.mark.parametrize("growth", [0.5, 1.3, 2.0])
def test_growing_rounds_spend_the_whole_budget(growth: float) -> None:
    per_round = split_budget("5%", 4365, 5, growth=growth)
    assert sum(per_round) == 218
    ratios = [later / earlier for earlier, later in itertools.pairwise(per_round)]
    assert ratios == pytest.approx([growth] * 4, rel=0.12)


@pytest.mark.parametrize(
    ("budget", "growth", "words"),
    [
        (101, 1.0, "is 101 labels in 5 rounds"),
        ("150%", 1.0, "but the pool has 100"),
        ("2%", 1.0, "too few for 5 rounds"),
        (10, 4.0, "too few for 5 rounds"),  # empty rounds
        ("many", 1.0, "must be a count"),
        ("0.05", 1.0, "must be a whole number"),
        ("-3", 1.0, "must be a count"),
    ],
)
def test_invalid_budgets(budget: int | str, growth: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        split_budget(budget, 100, 5, growth=growth)


@pytest.mark.parametrize(
    ("budget", "areas", "rounds", "rounding", "expected"),
    [
        ("5%", [819_200], 5, "nearest_total", [(8192,) * 5]),
        ("1%", [131_072], 5, "nearest_total", [(262, 262, 262, 262, 263)]),
        ("1%", [131_072], 5, "ceil_per_round", [(263,) * 5]),
        ("40960/image", [2_097_152], 5, "nearest_total", [(8192,) * 5]),
        ("3/image", [100, 9], 2, "nearest_total", [(1, 2), (2, 1)]),
        (7, [50, 50, 50], 1, "nearest_total", [(3,), (2,), (2,)]),
        ("100%", [6, 4], 1, "nearest_total", [(6,), (4,)]),
        ("5%", [100], 0, "nearest_total", [()]),
    ],
)
def test_pixels_per_image(
    budget: int | str, areas: list[int], rounds: int, rounding: Any, expected: list[tuple[int, ...]]
) -> None:
    assert split_pixels(budget, areas, rounds, rounding) == expected


@pytest.mark.parametrize(
    ("budget", "rounding", "total"),
    [
        ("0.02%", "nearest_total", 600),
        ("2/image", "nearest_total", 600),
        (1001, "nearest_total", 1001),
        (11, "ceil_per_round", 15),  # each round is rounded up
    ],
)
def test_rounds_and_images_differ_by_at_most_one_pixel(budget: int | str, rounding: Any, total: int) -> None:
    per_image = split_pixels(budget, [64 * 128] * 300, 5, rounding)
    by_round, by_image = (
        [sum(counts) for counts in table] for table in (zip(*per_image, strict=True), per_image)
    )
    assert sum(by_round) == total
    for totals in (by_round, by_image):
        assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize(
    ("budget", "word"),
    [("101%", "lower acquisition.budget"), ("0.001%", "raise"), ("few", "must be a count")],
)
def test_invalid_pixel_budgets(budget: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        split_pixels(budget, [100, 100], 2)
