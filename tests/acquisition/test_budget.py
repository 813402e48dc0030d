import itertools
from typing import Any

import pytest

from ducats.acquisition.budget import split_budget, split_pixels
from ducats.utils.errors import UserError

# Published: ceil(1 % of the target), five times (classification spec, section 0).
PUBLISHED = {
    2427: 25,
    4365: 44,
    4439: 45,
    4357: 44,
    55388: 554,
    18073: 181,
    30572: 306,
    64979: 650,
    23862: 239,
}


def test_published_rounding() -> None:
    for pool, per_round in PUBLISHED.items():
        assert split_budget("5%", pool, 5, "ceil_per_round") == (per_round,) * 5


@pytest.mark.parametrize("pool", [20, 97, 200, 1297, 55388])
@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_total_is_rounded_to_the_nearest_label(pool: int, rounds: int) -> None:
    per_round = split_budget("25%", pool, rounds)
    assert abs(sum(per_round) - 0.25 * pool) <= 0.5
    assert max(per_round) - min(per_round) <= 1


def test_counts_and_percentages() -> None:
    assert split_budget(7, 100, 3) == (2, 2, 3)
    assert split_budget("65", 100, 5) == (13,) * 5
    assert split_budget("1", 100, 1) == (1,)
    assert split_budget("100%", 100, 2) == (50, 50)
    assert split_budget(5, 100, 5) == (1,) * 5  # no fewer than rounds
    assert split_budget("5%", 100, 0) == ()


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (101, "is 101 labels in 5 rounds"),
        ("150%", "but the pool has 100"),
        ("2%", "too few for 5 rounds"),
        ("many", "must be a count"),
        ("0.05", "must be a whole number"),
        ("-3", "must be a count"),
    ],
)
def test_invalid_budgets(budget: int | str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        split_budget(budget, 100, 5)


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


def test_total_pixel_count_is_spent_exactly() -> None:
    per_image = split_pixels(1001, [640 * 360] * 367, 5)
    assert sum(map(sum, per_image)) == 1001
    assert [sum(counts) for counts in zip(*per_image, strict=True)] == [200, 200, 200, 200, 201]


@pytest.mark.parametrize("budget", ["0.02%", "2/image", 1000])
def test_rounds_and_images_differ_by_at_most_one_pixel(budget: int | str) -> None:
    per_image = split_pixels(budget, [64 * 128] * 300, 5)
    totals = [sum(counts) for counts in zip(*per_image, strict=True)]
    assert max(totals) - min(totals) <= 1
    image_totals = [sum(counts) for counts in per_image]
    assert max(image_totals) - min(image_totals) <= 1


def test_ceil_per_round_exceeds_the_total() -> None:
    per_image = split_pixels(11, [64] * 100, 5, "ceil_per_round")
    assert [sum(counts) for counts in zip(*per_image, strict=True)] == [3] * 5


@pytest.mark.parametrize(
    ("budget", "word"),
    [("101%", "lower acquisition.budget"), ("0.001%", "raise"), ("few", "must be a count")],
)
def test_invalid_pixel_budgets(budget: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        split_pixels(budget, [100, 100], 2)


@pytest.mark.parametrize("growth", [0.5, 1.3, 2.0])
def test_growing_rounds_spend_the_whole_budget(growth: float) -> None:
    per_round = split_budget("5%", 4365, 5, growth=growth)
    assert sum(per_round) == 218
    ratios = [later / earlier for earlier, later in itertools.pairwise(per_round)]
    assert ratios == pytest.approx([growth] * 4, rel=0.12)
    with pytest.raises(UserError, match="too few for 5 rounds"):
        split_budget(10, 100, 5, growth=4.0)  # empty rounds
