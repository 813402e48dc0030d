"""Subsampling of candidates, for pools too large to compare all samples with each other.

Only the entropy is read for all candidates. Other columns, notably the features, are computed for the
subsample alone.
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

LEAST = 1e-12  # added to the entropy: a certain sample keeps a non-zero probability


class Competing(NamedTuple):
    """Candidates that a query considers."""

    order: Tensor  # their indices, in location order
    chance: Tensor | None  # inclusion probability of each; None: not sampled at random


def competing(slate: Slate, among: int | None, chosen: Chosen) -> Competing:
    """Return all candidates, or a subsample of them that is at least as large as the budget.

    Dividing each sampled value by its inclusion probability gives an unbiased estimate of the sum over all
    candidates. The result does not depend on the order of the pool.

    Args:
        slate: needs the column ``entropy`` if a subsample is taken.
        among: size of the subsample; None: all candidates.
        chosen: ``drawn`` samples without replacement, with probability proportional to the entropy;
            ``uncertain`` takes the candidates with the highest entropy.
    """
    if chosen not in get_args(Chosen):
        raise ValueError(f"query.params.chosen must be one of {', '.join(get_args(Chosen))}, not {chosen!r}")
    if among is not None and among < 1:
        raise ValueError(f"query.params.among must be at least 1, not {among}; None considers all candidates")
    rows = slate.candidates
    count = len(rows) if among is None else max(math.ceil(among), slate.budget)
    if count >= len(rows):
        return Competing(by_address(rows), None)
    entropy = rows.column("entropy").double()
    if chosen == "uncertain":
        kept = best(entropy, count, rows)
        return Competing(by_address(rows, kept), None)
    # Weighted sampling without replacement: keep the samples with the highest log(u) / w, u uniform. The
    # first key that is not kept is the threshold, from which the inclusion probability of each follows.
    weight = entropy.clamp(min=0) + LEAST
    luck = draw_per_address(slate.generator, rows.image, rows.position).log().to(weight.device) / weight
    kept = best(luck, count + 1, rows)
    bar, kept = luck[kept[-1]], kept[:-1]
    kept = by_address(rows, kept)
    return Competing(kept, -torch.expm1(bar * weight[kept]))


def needs_among(*needs: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Return a function from parameters to the columns of a query, with the entropy if it subsamples."""

    def with_knobs(params: Mapping[str, Any]) -> tuple[str, ...]:
        return needs if params.get("among") is None else ("entropy", *needs)

    return with_knobs
