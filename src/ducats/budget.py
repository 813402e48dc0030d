"""Split a budget of labels, pixels or time into rounds. Does not import torch."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.errors import UserError

Rounding = Literal["nearest_total", "ceil_per_round"]
SPARE = 1e-9  # rounding tolerance: 0.1 * 3 is slightly more than 0.3 in binary


@dataclass(frozen=True)
class PeopleTime:
    """A budget of annotation time. The number of questions depends on how fast they are answered."""

    seconds: float  # in total
    answer: float = 5.0  # assumed seconds per answer where none were measured

    def left(self, known: float | None, answers: int, timed: int) -> float:
        """Return the remaining seconds.

        Args:
            known: measured seconds of all timed answers; None if nothing was measured.
            answers: number of answered units.
            timed: number of these with measured seconds; each of the others counts as ``answer`` seconds.
        """
        return self.seconds - (known or 0.0) - (answers - timed) * self.answer

    def questions(self, known: float | None, answers: int, timed: int, rounds: int) -> int:
        """Return the questions for a round: an even share of the remaining time at the mean pace so far.

        At least one, but zero once the remaining time is shorter than one answer.

        Args:
            known: as in ``left``.
            answers: as in ``left``.
            timed: as in ``left``.
            rounds: remaining rounds, including this one.

        >>> PeopleTime(1800).rounds(None, 0, 0, rounds=5)
        72
        >>> PeopleTime(1800).rounds(720.0, 72, 72, rounds=4)
        27
        """
        left = self.left(known, answers, timed)
        pace = known / timed if known and timed else self.answer
        return max(1, math.floor(left / rounds / pace + SPARE)) if left / pace >= 1 - SPARE else 0

    def __str__(self) -> str:
        """Return the budget in minutes.

        >>> str(PeopleTime(1800)), str(PeopleTime(90))
        ('30 min of annotation', '1.5 min of annotation')
        """
        return f"{self.seconds / 60:.4g} min of annotation"


def time_of(budget: int | str, answer: float = 5.0, growth: float = 1.0) -> PeopleTime | None:
    """Parse a time budget such as ``"30min"`` or ``"1.5h"``; return None for any other budget.

    Args:
        budget: the setting ``acquisition.budget``.
        answer: assumed seconds per answer.
        growth: must be 1 with a time budget.

    >>> time_of("30min"), time_of("1.5 h", answer=2.0), time_of("5%")
    (PeopleTime(seconds=1800.0, answer=5.0), PeopleTime(seconds=5400.0, answer=2.0), None)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h)\s*", str(budget))
    if match is None:
        return None
    if growth != 1:
        raise UserError(
            f"acquisition.growth={growth:g} does not work with the time budget acquisition.budget={budget}, which is split "
            "evenly over the rounds: remove acquisition.growth, or give the budget as a number of labels"
        )
    time = PeopleTime(float(match[1]) * {"min": 60.0, "h": 3600.0}[match[2]], answer)
    if time.questions(None, 0, 0, 1) < 1:
        raise UserError(
            f"acquisition.budget={budget} is shorter than one answer (acquisition.seconds_per_label={answer:g}): raise acquisition.budget "
            "or lower acquisition.seconds_per_label"
        )
    return time


def split_budget(
    budget: int | str,
    pool: int,
    rounds: int,
    rounding: Rounding = "nearest_total",
    growth: float = 1.0,
) -> tuple[int, ...]:
    """Return the number of labels per round.

    Args:
        budget: a count (``65`` or ``"65"``) or a percentage of the pool (``"5%"``).
        pool: size of the pool before the first round.
        rounds: number of rounds.
        rounding: ``nearest_total`` rounds the total to the nearest label and gives the remainder to the last
            rounds; ``ceil_per_round`` (published) rounds each round up.
        growth: ratio of the labels of a round to those of the round before; 1: all rounds are equal.

    >>> split_budget("5%", 1297, 5)
    (13, 13, 13, 13, 13)
    >>> split_budget("5%", 2427, 5), split_budget("5%", 2427, 5, "ceil_per_round")
    ((24, 24, 24, 24, 25), (25, 25, 25, 25, 25))
    >>> split_budget(62, 1000, 5, growth=2.0)
    (2, 4, 8, 16, 32)
    """
    if rounds == 0:
        return ()
    amount, shared = parse_budget(budget)
    total = amount * pool / 100 if shared else amount
    parts = _in_rounds(total, rounds, rounding) if growth == 1 else _growing(total, rounds, growth)
    if sum(parts) > pool:
        raise UserError(
            f"the budget {budget!r} is {sum(parts)} labels in {rounds} rounds, but the pool has "
            f"{pool} images: lower acquisition.budget"
        )
    if min(parts) == 0:
        raise UserError(
            f"the budget {budget!r} is {sum(parts)} labels of a pool of {pool}, too few for {rounds} rounds: "
            "raise acquisition.budget or lower acquisition.rounds"
        )
    return parts


def split_pixels(
    budget: int | str,
    areas: Sequence[int],
    rounds: int,
    rounding: Rounding = "nearest_total",
) -> list[tuple[int, ...]]:
    """Return the number of pixels to label per image and round.

    Args:
        budget: a percentage of each image (``"5%"``), a count per image (``"40/image"``), or a total count.
        areas: number of pixels of each image.
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
    amount, shared = (float(each[1]), False) if each else parse_budget(budget)
    if shared or each:
        totals = [amount * area / 100 if shared else amount for area in areas]
        # The remainder goes to different rounds from image to image, which keeps the rounds even.
        parts = [_turned(_in_rounds(total, rounds, rounding), place) for place, total in enumerate(totals)]
    else:
        ends = [0, *itertools.accumulate(_in_rounds(amount, rounds, rounding))]
        parts = list(
            zip(*(dealt(start, end, len(areas)) for start, end in itertools.pairwise(ends)), strict=True)
        )
    for place, (part, area) in enumerate(zip(parts, areas, strict=True)):
        if sum(part) > area:
            raise UserError(
                f"the budget {budget!r} is {sum(part)} pixels of image {place}, which has {area}: "
                "lower acquisition.budget"
            )
    if not all(map(sum, zip(*parts, strict=True))):
        raise UserError(
            f"the budget {budget!r} leaves at least one of {rounds} rounds without pixels: raise acquisition.budget "
            "or lower acquisition.rounds"
        )
    return parts


def dealt(start: int, end: int, images: int) -> list[int]:
    """Return how many of the units ``start`` to ``end`` each image gets, distributed round-robin.

    >>> dealt(0, 5, 3), dealt(5, 10, 3)
    ([2, 2, 1], [2, 1, 2])
    """
    return [(end - place - 1) // images - (start - place - 1) // images for place in range(images)]


def _turned(parts: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Rotate the parts to other rounds.

    >>> _flip_selected((1, 1, 2), 1)
    (1, 2, 1)
    """
    by %= len(parts)
    return parts[by:] + parts[:by]


def _in_rounds(total: float, rounds: int, rounding: Rounding) -> tuple[int, ...]:
    """Split a total into equal whole parts."""
    if rounding == "ceil_per_round":
        # 5 % of 200 is 10.000000000000002 in binary.
        return (math.ceil(total / rounds - SPARE),) * rounds
    whole, rest = divmod(math.floor(total + 0.5), rounds)
    return tuple(whole + (r >= rounds - rest) for r in range(rounds))


def _growing(total: float, rounds: int, growth: float) -> tuple[int, ...]:
    """Split a total into whole parts, each about ``growth`` times the one before."""
    shares = list(itertools.accumulate(growth**r for r in range(rounds)))
    whole = math.floor(total + 0.5)
    ends = [0, *(math.floor(whole * share / shares[-1] + 0.5) for share in shares)]
    return tuple(end - start for start, end in itertools.pairwise(ends))


def parse_budget(budget: int | str) -> tuple[float, bool]:
    """Return the number, and whether it is a percentage rather than a count.

    >>> parse_budget(65), parse_budget("0.5%")
    ((65.0, False), (0.5, True))
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(budget))
    if match is None:
        raise UserError(
            f"the budget {budget!r} must be a count (65), a percentage (5%) or a time (30min, 1.5h)"
        )
    amount, shared = float(match[1]), bool(match[2])
    if not shared and amount != int(amount):
        raise UserError(f"the budget {budget!r} must be a whole number; write a percentage with a % sign")
    return amount, shared
