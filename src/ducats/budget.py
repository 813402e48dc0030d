"""How a budget becomes whole labels per round. Needs no torch."""

import math
import re
from typing import Literal

from ducats.errors import UserError

Rounding = Literal["nearest_total", "ceil_per_round"]


def split_budget(
    budget: int | str, pool: int, rounds: int, rounding: Rounding = "nearest_total"
) -> tuple[int, ...]:
    """Labels to buy in each round.

    Args:
        budget: a count (``65`` or ``"65"``) or a share of the pool (``"5%"``).
        pool: images in the pool before anything was bought.
        rounds: number of rounds.
        rounding: ``nearest_total`` rounds the whole to the nearest label and hands what does not divide to
            the last rounds; ``ceil_per_round`` (published) rounds each round's share up.

    >>> split_budget("5%", 1297, 5)
    (13, 13, 13, 13, 13)
    >>> split_budget("5%", 2427, 5), split_budget("5%", 2427, 5, "ceil_per_round")
    ((24, 24, 24, 24, 25), (25, 25, 25, 25, 25))
    """
    if rounds == 0:
        return ()
    amount, shared = _parse(budget)
    total = amount * pool / 100 if shared else amount
    if rounding == "ceil_per_round":
        # A share such as 5 % of 200 is 10.000000000000002 in binary: forgive the last bits.
        parts = (math.ceil(total / rounds - 1e-9),) * rounds
    else:
        whole, rest = divmod(math.floor(total + 0.5), rounds)
        parts = tuple(whole + (r >= rounds - rest) for r in range(rounds))
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


def _parse(budget: int | str) -> tuple[float, bool]:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(budget))
    if match is None:
        raise UserError(f"the budget {budget!r} is neither a count (65) nor a share (5%)")
    amount, shared = float(match[1]), bool(match[2])
    if not shared and amount != int(amount):
        raise UserError(f"the budget {budget!r} is no whole number; a share is written with a per cent sign")
    return amount, shared
