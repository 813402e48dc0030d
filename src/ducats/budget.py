"""How a budget becomes whole labels per round. Needs no torch."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Literal

from ducats.errors import UserError

Rounding = Literal["nearest_total", "ceil_per_round"]


def split_budget(
    budget: int | str,
    pool: int,
    rounds: int,
    rounding: Rounding = "nearest_total",
    growth: float = 1.0,
) -> tuple[int, ...]:
    """Labels to buy in each round.

    Args:
        budget: a count (``65`` or ``"65"``) or a share of the pool (``"5%"``).
        pool: images in the pool before anything was bought.
        rounds: number of rounds.
        rounding: ``nearest_total`` rounds the whole to the nearest label and hands what does not divide to
            the last rounds; ``ceil_per_round`` (published) rounds each round's share up.
        growth: how many times as many labels as before each round buys; 1: all buy the same.

    >>> split_budget("5%", 1297, 5)
    (13, 13, 13, 13, 13)
    >>> split_budget("5%", 2427, 5), split_budget("5%", 2427, 5, "ceil_per_round")
    ((24, 24, 24, 24, 25), (25, 25, 25, 25, 25))
    >>> split_budget(62, 1000, 5, growth=2.0)
    (2, 4, 8, 16, 32)
    """
    if rounds == 0:
        return ()
    amount, shared = _parse(budget)
    total = amount * pool / 100 if shared else amount
    parts = _in_rounds(total, rounds, rounding) if growth == 1 else _growing(total, rounds, growth)
    if sum(parts) > pool:
        raise UserError(
            f"the budget {budget!r} asks for {sum(parts)} labels in {rounds} rounds, but the pool holds "
            f"{pool} images: lower ask.budget"
        )
    if min(parts) == 0:
        raise UserError(
            f"the budget {budget!r} is {sum(parts)} labels of a pool of {pool}, too few for {rounds} rounds: "
            "raise ask.budget or lower ask.rounds"
        )
    return parts


def split_pixels(
    budget: int | str,
    areas: Sequence[int],
    rounds: int,
    rounding: Rounding = "nearest_total",
) -> list[tuple[int, ...]]:
    """Pixels to buy of each image in each round.

    Args:
        budget: a share of each image (``"5%"``), a count for each (``"40/image"``), or one for all together.
        areas: pixels of each image.
        rounds: number of rounds.
        rounding: as in ``split_budget``.

    >>> split_pixels("5%", [100, 819200], 5)
    [(1, 1, 1, 1, 1), (8192, 8192, 8192, 8192, 8192)]
    >>> split_pixels("40/image", [10000], 5), split_pixels(10, [64, 64, 64], 2)
    ([(8, 8, 8, 8, 8)], [(2, 2), (2, 1), (1, 2)])
    """
    if rounds == 0:
        return [()] * len(areas)
    each = re.fullmatch(r"\s*(\d+)\s*/\s*image\s*", str(budget))
    amount, shared = (float(each[1]), False) if each else _parse(budget)
    if shared or each:
        totals = [amount * area / 100 if shared else amount for area in areas]
        # What does not divide goes to other rounds from image to image: so rounds are even.
        parts = [_turned(_in_rounds(total, rounds, rounding), place) for place, total in enumerate(totals)]
    else:
        ends = [0, *itertools.accumulate(_in_rounds(amount, rounds, rounding))]
        dealt = [_dealt(start, end, len(areas)) for start, end in itertools.pairwise(ends)]
        parts = list(zip(*dealt, strict=True))
    for place, (part, area) in enumerate(zip(parts, areas, strict=True)):
        if sum(part) > area:
            raise UserError(
                f"the budget {budget!r} asks for {sum(part)} pixels of image {place}, which has {area}: "
                "lower ask.budget"
            )
    if not all(map(sum, zip(*parts, strict=True))):
        raise UserError(
            f"the budget {budget!r} buys no pixel of any image in one of {rounds} rounds: raise ask.budget "
            "or lower ask.rounds"
        )
    return parts


def _dealt(start: int, end: int, images: int) -> list[int]:
    """How many of the pixels from one number to another each image gets, if they are dealt out in turn.

    >>> _dealt(0, 5, 3), _dealt(5, 10, 3)
    ([2, 2, 1], [2, 1, 2])
    """
    return [(end - place - 1) // images - (start - place - 1) // images for place in range(images)]


def _turned(parts: tuple[int, ...], by: int) -> tuple[int, ...]:
    """The same parts in other rounds.

    >>> _turned((1, 1, 2), 1)
    (1, 2, 1)
    """
    by %= len(parts)
    return parts[by:] + parts[:by]


def _in_rounds(total: float, rounds: int, rounding: Rounding) -> tuple[int, ...]:
    """A total in whole parts."""
    if rounding == "ceil_per_round":
        # A share such as 5 % of 200 is 10.000000000000002 in binary: forgive the last bits.
        return (math.ceil(total / rounds - 1e-9),) * rounds
    whole, rest = divmod(math.floor(total + 0.5), rounds)
    return tuple(whole + (r >= rounds - rest) for r in range(rounds))


def _growing(total: float, rounds: int, growth: float) -> tuple[int, ...]:
    """A total in whole parts, each ``growth`` times the one before as nearly as whole numbers can be."""
    shares = list(itertools.accumulate(growth**r for r in range(rounds)))
    whole = math.floor(total + 0.5)
    ends = [0, *(math.floor(whole * share / shares[-1] + 0.5) for share in shares)]
    return tuple(end - start for start, end in itertools.pairwise(ends))


def _parse(budget: int | str) -> tuple[float, bool]:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(budget))
    if match is None:
        raise UserError(f"the budget {budget!r} is neither a count (65) nor a share (5%)")
    amount, shared = float(match[1]), bool(match[2])
    if not shared and amount != int(amount):
        raise UserError(f"the budget {budget!r} is no whole number; a share is written with a per cent sign")
    return amount, shared
