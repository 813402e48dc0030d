"""Queries: select the samples to label.

A query is a function from a `QueryContext` to the indices of the selected candidates. Its parameters are
keyword-only and have defaults. A `QuerySpec` also declares the columns that the query reads, so random
selection needs no forward pass.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ducats.criteria import GIVEN, TOLD, WHOLE, criterion
from ducats.criteria import columns_of as columns_of
from ducats.queries import (
    aada,
    badge,
    clue,
    coreset,
    dbal,
    eada,
    euq,
    las,
    mada,
    ripu,
    sdm,
    spread,
    tqs,
    waal,
)
from ducats.queries.among import needs_among
from ducats.queries.ranked import entropy, least_confident, margin, u_data, u_dis, uniform
from ducats.queries.two_round import two_round, two_round_needs
from ducats.rows import Slate

Query = Callable[[Slate], Tensor]


@dataclass(frozen=True)
class Strategy:
    """A query and the columns it reads.

    The columns are ``z`` (log alpha), ``features`` (the input of the last layer), the criteria of
    `ducats.criteria` (``entropy``, ``margin``, ``u_dis``, ...), and the outputs of probes, which are small
    networks trained alongside the model: ``domain``, ``critic``, ``committee``.
    """

    query: Callable[..., Tensor]
    needs: tuple[str, ...] = GIVEN  # with default parameters
    needs_of: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # if they depend on parameters
    source: tuple[str, ...] = ()  # columns of `slate.source`; whole images only
    source_of: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # if they depend on parameters
    head: bool = False  # whether it reads `slate.head`, the weights of the last layer

    def bound(self, params: Mapping[str, Any]) -> "Strategy":
        """Return a copy with the parameters bound and the columns resolved."""
        needs = self.needs if self.needs_of is None else self.needs_of(params)
        source = self.source if self.source_of is None else self.source_of(params)
        query = partial(self.query, **params)
        return replace(self, query=query, needs=needs, needs_of=None, source=source, source_of=None)

    @property
    def of_pixels(self) -> bool:
        """Whether the query needs pixel neighbourhoods and so cannot select whole images."""
        named = [name for name in self.needs if name not in (*GIVEN, *TOLD)]
        return any(name in WHOLE or criterion(name).of_pixels for name in named)

    @property
    def summary(self) -> str:
        """First line of the query's docstring."""
        return (self.query.__doc__ or "no description").strip().splitlines()[0]

    @property
    def params(self) -> str:
        """Parameters and their defaults, as ``name=default, ...``."""
        parameters = list(inspect.signature(self.query).parameters.values())[1:]
        return ", ".join(f"{p.name}={p.default}" for p in parameters)


QUERIES: Mapping[str, Strategy] = {
    "random": Strategy(uniform, needs=()),
    "entropy": Strategy(entropy, needs=("entropy",)),
    "margin": Strategy(margin, needs=("margin",)),
    "least_confident": Strategy(least_confident, needs=("confidence",)),
    "coreset": Strategy(
        coreset.coreset, ("features",), needs_among("features"), source_of=coreset.coreset_source
    ),
    "badge": Strategy(badge.badge, ("z", "features"), needs_among("z", "features")),
    "waal": Strategy(waal.waal, needs=("z", "critic")),
    "aada": Strategy(aada.aada, needs=("domain", "entropy")),
    "dbal": Strategy(dbal.dbal, needs=("features", "margin"), source=("features",)),
    "tqs": Strategy(tqs.tqs, tqs.tqs_needs({}), tqs.tqs_needs),
    "clue": Strategy(clue.clue, ("z", "features"), needs_among("z", "features")),
    "eada": Strategy(eada.eada, needs=("free_energy", "energy_gap")),
    "duc": Strategy(two_round, two_round_needs({}), two_round_needs),
    "euq": Strategy(euq.euq, euq.euq_needs({}), euq.euq_needs),
    "sdm": Strategy(sdm.sdm, needs=("z",), head=True),
    "las": Strategy(las.las, ("z", "features"), needs_among("z", "features")),
    "spread": Strategy(spread.spread, spread.spread_needs({}), spread.spread_needs),
    "u_dis": Strategy(u_dis, needs=("u_dis",)),
    "u_data": Strategy(u_data, needs=("u_data",)),
    "mada": Strategy(mada.mada, needs=("descriptor",), source=("descriptor",)),
    "ripu": Strategy(ripu.ripu, needs=("impurity", "entropy")),
    "ripu_points": Strategy(ripu.ripu_points, ripu.points_needs({}), ripu.points_needs),
}
