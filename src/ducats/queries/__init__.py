"""Queries: which rows are worth a label.

A query is a function from a slate to the indices of its picks. Its knobs are keyword-only, with defaults. A
strategy adds which columns must be computed for it, so that random choice costs no forward pass.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ducats.queries.ranked import entropy, least_confident, margin, u_data, u_dis, uniform
from ducats.queries.spread import spread
from ducats.queries.two_round import two_round
from ducats.rows import Slate

Query = Callable[[Slate], Tensor]


@dataclass(frozen=True)
class Strategy:
    """A query and the columns it reads: ``z`` (log alpha), ``features`` (what the last layer sees)."""

    query: Callable[..., Tensor]
    needs: tuple[str, ...] = ("z", "features")

    @property
    def summary(self) -> str:
        """The promise, in one line."""
        return (self.query.__doc__ or "no description").strip().splitlines()[0]

    @property
    def knobs(self) -> str:
        """What can be turned, with defaults."""
        parameters = list(inspect.signature(self.query).parameters.values())[1:]
        return ", ".join(f"{p.name}={p.default}" for p in parameters)


QUERIES: Mapping[str, Strategy] = {
    "random": Strategy(uniform, needs=()),
    "entropy": Strategy(entropy, needs=("z",)),
    "margin": Strategy(margin, needs=("z",)),
    "least_confident": Strategy(least_confident, needs=("z",)),
    "u_dis": Strategy(u_dis, needs=("z",)),
    "u_data": Strategy(u_data, needs=("z",)),
    "duc": Strategy(two_round, needs=("z",)),
    "spread": Strategy(spread, needs=("z", "features")),
}
