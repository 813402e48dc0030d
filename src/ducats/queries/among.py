"""Pre-selection: of a pool too large to compare its rows with each other, some candidates compete.

Only their entropy is read of all rows. Other columns, features above all, are those of the few that are left.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ducats.queries.distances import by_address
from ducats.randomness import draw_per_address
from ducats.rows import Slate, best

Chosen = Literal["drawn", "uncertain"]

LEAST = 1e-12  # entropy of a sure row, so that it has a chance, too


class Competing(NamedTuple):
    """Which candidates compete."""

    order: Tensor  # their indices, by address
    chance: Tensor | None  # how probable it was that each was drawn; None: no luck was in it


def competing(slate: Slate, among: int | None, chosen: Chosen) -> Competing:
    """The candidates that compete for a budget: all, or ``among`` of them, and never less than the budget.

    A sum over those drawn, each divided by its chance, is without bias the sum over all candidates.

    Args:
        slate: the candidates; where not all compete, with their entropy.
        among: how many; None: all.
        chosen: ``drawn``, without replacement, with odds in proportion to their entropy; or ``uncertain``,
            those of the highest. Either way the order of the pool has no say.
    """
    if chosen not in get_args(Chosen):
        raise ValueError(f"chosen is one of {', '.join(get_args(Chosen))}, not {chosen!r}")
    if among is not None and among < 1:
        raise ValueError(f"among must be at least 1, not {among}: that many candidates compete")
    rows = slate.candidates
    count = len(rows) if among is None else max(math.ceil(among), slate.budget)
    if count >= len(rows):
        return Competing(by_address(rows), None)
    entropy = rows.column("entropy").double()
    if chosen == "uncertain":
        kept = best(entropy, count, rows)
        return Competing(by_address(rows, kept), None)
    # A row of weight w that draws u is kept where log(u) / w is high: the odds are then in proportion to w.
    # Once the first that is not kept is known, so is the chance of each other one to pass it.
    weight = entropy.clamp(min=0) + LEAST
    luck = draw_per_address(slate.generator, rows.image, rows.position).log().to(weight.device) / weight
    kept = best(luck, count + 1, rows)
    bar, kept = luck[kept[-1]], kept[:-1]
    kept = by_address(rows, kept)
    return Competing(kept, -torch.expm1(bar * weight[kept]))


def needs_among(*needs: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Columns of a query that pre-selects: its own, and the entropy where not all compete."""

    def with_knobs(knobs: Mapping[str, Any]) -> tuple[str, ...]:
        return needs if knobs.get("among") is None else ("entropy", *needs)

    return with_knobs
