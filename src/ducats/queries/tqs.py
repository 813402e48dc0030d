"""TQS's query (Fu et al., CVPR 2021): committee, uncertainty and domainness, and some chance."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ducats.queries.distances import by_address, in_order
from ducats.queries.two_round import at_least
from ducats.randomness import draw_per_address
from ducats.rows import Rows, Slate, best

AT_ONCE = 2**14  # rows per pass


def tqs(slate: Slate, *, domainness: float = 1.0, sigma: float = 0.25, reach: float | None = None) -> Tensor:
    """At random from the top by disagreement of a committee, margin, and doubt of the domain (TQS).

    Drawn from as many of the top as the model expects to get wrong, ``N (1 - mean confidence)``: the
    published code takes the error on the test set, whose labels nobody has.

    Args:
        slate: the candidates.
        domainness: weight of the doubt of the domain, ``exp(-(D - 1/2)^2 / (2 sigma^2))``.
        sigma: how far from 1/2 the discriminator's D may be.
        reach: draw from this many times the budget instead.
    """
    if sigma <= 0:
        raise ValueError(f"sigma must be above 0, not {sigma}")
    if reach is not None and reach < 1:
        raise ValueError(f"reach must be at least 1, not {reach}: it is a multiple of the budget")
    # In a fixed order: the last bits of a mean depend on it.
    order = by_address(slate.candidates)
    if slate.budget == 0 or not len(order):
        return order[:0]
    rows = in_order(slate.candidates, order)
    doubt = torch.exp(-((rows.column("domain").double() - 0.5) ** 2) / (2 * sigma**2))
    score = disagreement(rows) + 1 - rows.column("margin").double() + domainness * doubt
    if reach is not None:
        wanted = reach * slate.budget
    else:
        wanted = len(rows) - round(float(rows.column("confidence").double().sum()))
    top = best(score, at_least(wanted, slate), rows)
    drawn = rows[top]
    picks = best(draw_per_address(slate.generator, drawn.image, drawn.position), slate.budget, drawn)
    return order[top[picks]]


def tqs_needs(knobs: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns; the confidence only where it says how many to draw from."""
    always = ("margin", "committee", "domain")
    return (*always, "confidence") if knobs.get("reach") is None else always


def disagreement(rows: Rows) -> Tensor:
    """Standard deviation of a class's probability over the members, mean over the classes: ``(R,)``."""
    committee = rows.column("committee")
    unbiased = min(1, committee.shape[1] - 1)  # a single member agrees with itself
    # In parts: the whole table in float64 would be twice as large again.
    parts = [some.double().std(1, correction=unbiased).mean(1) for some in committee.split(AT_ONCE)]
    return torch.cat(parts)
