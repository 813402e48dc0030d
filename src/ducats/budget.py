"""How a budget becomes whole labels per round. Needs no torch."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.errors import UserError

Rounding = Literal["nearest_total", "ceil_per_round"]
SPARE = 1e-9  # 0.1 * 3 is a little more than 0.3 in binary: forgive the last bits


@dataclass(frozen=True)
class PeopleTime:
    """A budget of people's time. How many questions it comes to shows while they answer."""

    seconds: float  # in all
    answer: float = 5.0  # seconds that an answer is thought to take, where nobody's are known

    def left(self, known: float | None, answers: int, timed: int) -> float:
        """Seconds that are not spent.

        Args:
            known: seconds that people are known to have taken; None if nobody's are.
            answers: units that were answered.
            timed: of these, those whose seconds are known; each of the others counts as ``answer``.
        """
        return self.seconds - (known or 0.0) - (answers - timed) * self.answer

    def questions(self, known: float | None, answers: int, timed: int, rounds: int) -> int:
        """How many questions a round may ask: its even share of what is left, at the pace so far.

        One at the least, until what is left is less than one answer takes: then none.

        Args:
            known: as in ``left``, like the next two.
            answers: units.
            timed: of these.
            rounds: that are still to come, this one included.

        >>> PeopleTime(1800).questions(None, 0, 0, rounds=5)
        72
        >>> PeopleTime(1800).questions(720.0, 72, 72, rounds=4)
        27
        """
        left = self.left(known, answers, timed)
        pace = known / timed if known and timed else self.answer
        return max(1, math.floor(left / rounds / pace + SPARE)) if left / pace >= 1 - SPARE else 0

    def __str__(self) -> str:
        """In words.

        >>> str(PeopleTime(1800)), str(PeopleTime(90))
        ('30 min of people', '1.5 min of people')
        """
        return f"{self.seconds / 60:.4g} min of people"


def time_of(budget: int | str, answer: float = 5.0, growth: float = 1.0) -> PeopleTime | None:
    """The budget as a time, if it is one: ``"30min"`` or ``"1.5h"``.

    Args:
        budget: as it is written.
        answer: seconds that an answer is thought to take.
        growth: of the rounds, which time does not go with.

    >>> time_of("30min"), time_of("1.5 h", answer=2.0), time_of("5%")
    (PeopleTime(seconds=1800.0, answer=5.0), PeopleTime(seconds=5400.0, answer=2.0), None)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h)\s*", str(budget))
    if match is None:
        return None
    if growth != 1:
        raise UserError(
            f"ask.growth={growth:g} does not go with ask.budget={budget}, which each round shares evenly "
            "with the rounds to come: leave ask.growth out, or give the budget as a count of labels"
        )
    time = PeopleTime(float(match[1]) * {"min": 60.0, "h": 3600.0}[match[2]], answer)
    if time.questions(None, 0, 0, 1) < 1:
        raise UserError(
            f"ask.budget={budget} is less than one answer takes (ask.seconds={answer:g}): raise ask.budget "
            "or lower ask.seconds"
        )
    return time


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
    amount, shared = parse_budget(budget)
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
    amount, shared = (float(each[1]), False) if each else parse_budget(budget)
    if shared or each:
        totals = [amount * area / 100 if shared else amount for area in areas]
        # What does not divide goes to other rounds from image to image: so rounds are even.
        parts = [_turned(_in_rounds(total, rounds, rounding), place) for place, total in enumerate(totals)]
    else:
        ends = [0, *itertools.accumulate(_in_rounds(amount, rounds, rounding))]
        parts = list(
            zip(*(dealt(start, end, len(areas)) for start, end in itertools.pairwise(ends)), strict=True)
        )
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


def dealt(start: int, end: int, images: int) -> list[int]:
    """How many of the pixels from one number to another each image gets, if they are dealt out in turn.

    >>> dealt(0, 5, 3), dealt(5, 10, 3)
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
        # A share such as 5 % of 200 is 10.000000000000002 in binary.
        return (math.ceil(total / rounds - SPARE),) * rounds
    whole, rest = divmod(math.floor(total + 0.5), rounds)
    return tuple(whole + (r >= rounds - rest) for r in range(rounds))


def _growing(total: float, rounds: int, growth: float) -> tuple[int, ...]:
    """A total in whole parts, each ``growth`` times the one before as nearly as whole numbers can be."""
    shares = list(itertools.accumulate(growth**r for r in range(rounds)))
    whole = math.floor(total + 0.5)
    ends = [0, *(math.floor(whole * share / shares[-1] + 0.5) for share in shares)]
    return tuple(end - start for start, end in itertools.pairwise(ends))


def parse_budget(budget: int | str) -> tuple[float, bool]:
    """A number, and whether it is a share of the pool in per cent rather than a count.

    >>> parse_budget(65), parse_budget("0.5%")
    ((65.0, False), (0.5, True))
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(budget))
    if match is None:
        raise UserError(
            f"the budget {budget!r} is neither a count (65), nor a share (5%), nor a time (30min, 1.5h)"
        )
    amount, shared = float(match[1]), bool(match[2])
    if not shared and amount != int(amount):
        raise UserError(f"the budget {budget!r} is no whole number; a share is written with a per cent sign")
    return amount, shared
