"""Split a budget of labels, pixels or time into rounds. Does not import torch."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ducats.settings import Rounding
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise

_ROUNDING_TOLERANCE = 1e-9  # 0.1 * 3 is slightly more than 0.3 in binary


@dataclass(frozen=True)
class TimeBudget:
    """A budget of annotation time. The number of questions depends on how fast they are answered."""

    seconds: float  # in total
    seconds_per_label: float = 5.0  # assumed seconds per answer where none were measured

    def remaining_seconds(
        self, measured_seconds: float | None, answered_units: int, timed_units: int
    ) -> float:
        """Return the remaining seconds.

        Args:
            measured_seconds: measured seconds of all timed answers; None if nothing was measured.
            answered_units: number of answered units.
            timed_units: number of these with measured seconds; each of the others counts as
                ``seconds_per_label`` seconds.
        """
        return (
            self.seconds - (measured_seconds or 0.0) - (answered_units - timed_units) * self.seconds_per_label
        )

    def questions_in_round(
        self, measured_seconds: float | None, answered_units: int, timed_units: int, remaining_rounds: int
    ) -> int:
        """Return the questions for a round: an even share of the remaining time at the mean pace so far.

        At least one, but zero once the remaining time is shorter than one answer.

        Args:
            remaining_rounds: remaining rounds, including this one; the other arguments are those of
                `remaining_seconds`.

        >>> TimeBudget(1800).questions_in_round(None, 0, 0, remaining_rounds=5)
        72
        >>> TimeBudget(1800).questions_in_round(720.0, 72, 72, remaining_rounds=4)
        27
        """
        remaining = self.remaining_seconds(measured_seconds, answered_units, timed_units)
        seconds_per_unit = (
            measured_seconds / timed_units if measured_seconds and timed_units else self.seconds_per_label
        )
        return (
            max(1, math.floor(remaining / remaining_rounds / seconds_per_unit + _ROUNDING_TOLERANCE))
            if remaining / seconds_per_unit >= 1 - _ROUNDING_TOLERANCE
            else 0
        )

    def __str__(self) -> str:
        """Return the budget in minutes.

        >>> str(TimeBudget(1800)), str(TimeBudget(90))
        ('30 min of annotation', '1.5 min of annotation')
        """
        return f"{self.seconds / 60:.4g} min of annotation"


def parse_time_budget(
    budget: int | str, seconds_per_label: float = 5.0, growth: float = 1.0
) -> TimeBudget | None:
    """Parse a time budget such as ``"30min"`` or ``"1.5h"``; return None for any other budget.

    Args:
        growth: must be 1 with a time budget.

    >>> parse_time_budget("30min"), parse_time_budget("5%")
    (TimeBudget(seconds=1800.0, seconds_per_label=5.0), None)
    >>> parse_time_budget("1.5 h", seconds_per_label=2.0)
    TimeBudget(seconds=5400.0, seconds_per_label=2.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(min|h)\s*", str(budget))
    if match is None:
        return None
    if growth != 1:
        raise UserError(
            f"acquisition.growth={growth:g} does not work with the time budget acquisition.budget={budget}, "
            "which is split evenly over the rounds: remove acquisition.growth, or give the budget as a "
            "number of labels"
        )
    time_budget = TimeBudget(float(match[1]) * {"min": 60.0, "h": 3600.0}[match[2]], seconds_per_label)
    if time_budget.questions_in_round(None, 0, 0, 1) < 1:
        raise UserError(
            f"acquisition.budget={budget} is shorter than one answer (acquisition.seconds_per_label="
            f"{seconds_per_label:g}): raise acquisition.budget or lower acquisition.seconds_per_label"
        )
    return time_budget


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
    amount, is_percentage = parse_budget(budget)
    total = amount * pool / 100 if is_percentage else amount
    per_round = (
        _split_evenly(total, rounds, rounding) if growth == 1 else _split_geometrically(total, rounds, growth)
    )
    if sum(per_round) > pool:
        raise UserError(
            f"the budget {budget!r} is {pluralise(sum(per_round), 'label')} in {pluralise(rounds, 'round')}, "
            f"but the pool has {pluralise(pool, 'image')}: lower acquisition.budget"
        )
    if min(per_round) == 0:
        raise UserError(
            f"the budget {budget!r} is {pluralise(sum(per_round), 'label')} of a pool of {pool}, too few for "
            f"{pluralise(rounds, 'round')}: raise acquisition.budget or lower acquisition.rounds"
        )
    return per_round


def split_after_initial(
    budget: int | str,
    pool: int,
    rounds: int,
    n_initial: int,
    rounding: Rounding = "nearest_total",
    growth: float = 1.0,
) -> tuple[int, ...]:
    """Return the number of labels per round if the first round has labels that are known already.

    They count towards the budget. The other rounds share what is left of it; there are fewer if there are
    not enough labels for all.

    Args:
        rounds: number of rounds, with the first one.
        n_initial: labels of the first round. The other arguments are those of `split_budget`.

    >>> split_after_initial(65, 1297, 6, 40), split_after_initial("5%", 1297, 6, 63)
    ((40, 5, 5, 5, 5, 5), (63, 1, 1))
    >>> split_after_initial("5%", 1297, 6, 80)
    (80,)
    """
    amount, is_percentage = parse_budget(budget)
    total = round(amount * pool / 100) if is_percentage else int(amount)
    remaining = max(0, total - n_initial)
    return (
        n_initial,
        *split_budget(remaining, pool - n_initial, min(rounds - 1, remaining), rounding, growth),
    )


MIN_AUDIT = 20  # labels; fewer give an interval that says little
MAX_AUDIT = 10_000  # labels, by default; an interval for the accuracy then has at most 3 points
MAX_AUDIT_SHARE = 1 / 3  # of the budget, by default


def split_audit(
    audit: int | Literal["auto"], budget: Sequence[int], *, is_needed: bool, has_test: bool
) -> tuple[int, ...]:
    """Return how many labels of each round are for the audit; empty if none are.

    Args:
        audit: a count, split in proportion to the labels of each round; or ``auto``: a tenth of the budget
            from 20 to 10,000; none if that is more than a third of it, or if there is a test set.
        budget: labels of each round.
        is_needed: whether the run needs audit labels even if there is a test set.

    >>> split_audit("auto", (20, 20, 20, 20, 20), is_needed=False, has_test=False)
    (4, 4, 4, 4, 4)
    >>> split_audit(7, (10, 10), is_needed=False, has_test=True)
    (4, 3)
    >>> split_audit("auto", (5, 5), is_needed=False, has_test=False)
    ()
    """
    total = sum(budget)
    if not total:
        return ()
    count = min(max(MIN_AUDIT, math.ceil(total / 10)), MAX_AUDIT) if audit == "auto" else audit
    is_wanted = is_needed or not has_test
    if audit == "auto" and (not is_wanted or count > MAX_AUDIT_SHARE * total):
        count = 0
    ends = [round(count * end / total) for end in itertools.accumulate(budget)]
    per_round = tuple(end - start for start, end in itertools.pairwise([0, *ends]))
    leaves_none = any(n_audit >= labels for n_audit, labels in zip(per_round, budget, strict=True))
    if audit == "auto" and not is_needed and leaves_none:
        return ()
    if not count and is_needed:
        raise UserError(
            f"acquisition.until needs audit labels, but {MIN_AUDIT} are more than a third of the budget "
            f"of {pluralise(total, 'label')}: raise acquisition.budget, or set acquisition.audit"
        )
    if leaves_none:
        raise UserError(
            f"acquisition.audit={count} leaves a round of {min(budget)} labels without one to train on: "
            "raise acquisition.budget, or lower acquisition.audit or acquisition.rounds"
        )
    return per_round if count else ()


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
    count_per_image = re.fullmatch(r"\s*(\d+)\s*/\s*image\s*", str(budget))
    amount, is_percentage = (float(count_per_image[1]), False) if count_per_image else parse_budget(budget)
    if is_percentage or count_per_image:
        totals = [amount * area / 100 if is_percentage else amount for area in areas]
        # The remainder goes to different rounds from image to image, which keeps the rounds even.
        per_image = [
            _rotate(_split_evenly(total, rounds, rounding), image) for image, total in enumerate(totals)
        ]
    else:
        ends = [0, *itertools.accumulate(_split_evenly(amount, rounds, rounding))]
        per_image = list(
            zip(
                *(round_robin_counts(start, end, len(areas)) for start, end in itertools.pairwise(ends)),
                strict=True,
            )
        )
    for image, (image_budget, area) in enumerate(zip(per_image, areas, strict=True)):
        if sum(image_budget) > area:
            raise UserError(
                f"the budget {budget!r} is {pluralise(sum(image_budget), 'pixel')} of image {image}, which "
                f"has {area}: lower acquisition.budget"
            )
    if not all(map(sum, zip(*per_image, strict=True))):
        raise UserError(
            f"the budget {budget!r} leaves at least one of {rounds} rounds without pixels: raise "
            "acquisition.budget or lower acquisition.rounds"
        )
    return per_image


def reduce_budget(per_image: Sequence[int], count: int, phase: float) -> list[int]:
    """Take ``count`` pixels from the budgets of a round, in proportion to them.

    Args:
        phase: in [0, 1); rounds with different phases take the remainder from different images.

    >>> reduce_budget([8, 8, 8, 8, 8], 4, 0.0), reduce_budget([8, 8, 8, 8, 8], 4, 0.2)
    ([7, 7, 7, 7, 8], [7, 7, 7, 8, 7])
    """
    total = sum(per_image)
    kept, steps = total - count, round(phase * total)
    ends = [(kept * end + steps) // total for end in itertools.accumulate(per_image)] if total else []
    return [end - start for start, end in itertools.pairwise([0, *ends])]


def round_robin_counts(start: int, end: int, images: int) -> list[int]:
    """Return how many of the units ``start`` to ``end`` each image gets, distributed round-robin.

    >>> round_robin_counts(0, 5, 3), round_robin_counts(5, 10, 3)
    ([2, 2, 1], [2, 1, 2])
    """
    return [(end - image - 1) // images - (start - image - 1) // images for image in range(images)]


def _rotate(per_round: tuple[int, ...], by: int) -> tuple[int, ...]:
    """Rotate the counts by some rounds.

    >>> _rotate((1, 1, 2), 1)
    (1, 2, 1)
    """
    by %= len(per_round)
    return per_round[by:] + per_round[:by]


def _split_evenly(total: float, rounds: int, rounding: Rounding) -> tuple[int, ...]:
    """Split a total into equal whole parts."""
    if rounding == "ceil_per_round":
        # 5 % of 200 is 10.000000000000002 in binary.
        return (math.ceil(total / rounds - _ROUNDING_TOLERANCE),) * rounds
    whole, rest = divmod(math.floor(total + 0.5), rounds)
    return tuple(whole + (r >= rounds - rest) for r in range(rounds))


def _split_geometrically(total: float, rounds: int, growth: float) -> tuple[int, ...]:
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
    amount, is_percentage = float(match[1]), bool(match[2])
    if not is_percentage and amount != int(amount):
        raise UserError(f"the budget {budget!r} must be a whole number; write a percentage with a % sign")
    return amount, is_percentage
