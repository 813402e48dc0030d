"""Query of TQS (Fu et al., CVPR 2021): committee, uncertainty and domainness, with random sampling."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ducats.queries.distances import by_address, in_order
from ducats.queries.two_round import at_least
from ducats.randomness import draw_per_address
from ducats.rows import Rows, Slate, best

AT_ONCE = 2**14  # samples per pass


def tqs(slate: Slate, *, domainness: float = 1.0, sigma: float = 0.25, reach: float | None = None) -> Tensor:
    """Sample at random from the top by committee disagreement, margin and domainness (TQS).

    The number of top candidates is the expected number of errors, ``N (1 - mean confidence)``. The published
    code uses the error on the test set, whose labels are not available.

    Args:
        domainness: weight of the domainness, ``exp(-(D - 1/2)^2 / (2 sigma^2))``, where D is the
            discriminator's probability of the source.
        sigma: width of the domainness around D = 1/2.
        reach: sample from this multiple of the budget instead.
    """
    if sigma <= 0:
        raise ValueError(f"query.params.sigma must be above 0, not {sigma}")
    if reach is not None and reach < 1:
        raise ValueError(
            f"query.params.reach must be at least 1, not {reach}; it is a multiple of the budget"
        )
    # In a fixed order, as the last bits of a mean depend on it.
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


def tqs_needs(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns; the confidence is only needed without `reach`."""
    always = ("margin", "committee", "domain")
    return (*always, "confidence") if params.get("reach") is None else always


def disagreement(rows: Rows) -> Tensor:
    """Compute the standard deviation of class probabilities over members, mean over classes: ``(R,)``."""
    committee = rows.column("committee")
    unbiased = min(1, committee.shape[1] - 1)  # a single member has no deviation
    # In chunks: the whole table in float64 would need twice the memory.
    parts = [some.double().std(1, correction=unbiased).mean(1) for some in committee.split(AT_ONCE)]
    return torch.cat(parts)
