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

from ducats.acquisition.criteria import IMAGE_COLUMNS, MODEL_COLUMNS, PROBE_COLUMNS, get_criterion
from ducats.acquisition.criteria import compute_columns as compute_columns
from ducats.acquisition.queries import (
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
from ducats.acquisition.queries.basic import (
    least_confident,
    max_entropy,
    max_u_data,
    max_u_dis,
    min_margin,
    uniform,
)
from ducats.acquisition.queries.subsampling import needs_with_subsampling
from ducats.acquisition.queries.two_round import two_round, two_round_needs
from ducats.acquisition.samples import QueryContext

QueryFn = Callable[[QueryContext], Tensor]


@dataclass(frozen=True)
class QuerySpec:
    """A query and the columns it reads.

    The columns are ``z`` (log alpha), ``features`` (the input of the last layer), the criteria of
    `acquisition.criteria` (``entropy``, ``margin``, ``u_dis``, ...), and the outputs of probes, which are
    small networks trained alongside the model: ``domain``, ``critic``, ``committee``.
    """

    fn: Callable[..., Tensor]
    needs: tuple[str, ...] = MODEL_COLUMNS  # with default parameters
    needs_fn: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # if they depend on parameters
    source_needs: tuple[str, ...] = ()  # columns of `context.source`; whole images only
    source_needs_fn: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None  # likewise
    needs_head: bool = False  # whether it reads `context.head`, the weights of the last layer

    def bind(self, params: Mapping[str, Any]) -> "QuerySpec":
        """Return a copy with the parameters bound and the columns resolved."""
        needs = self.needs if self.needs_fn is None else self.needs_fn(params)
        source_needs = self.source_needs if self.source_needs_fn is None else self.source_needs_fn(params)
        fn = partial(self.fn, **params)
        return replace(
            self, fn=fn, needs=needs, needs_fn=None, source_needs=source_needs, source_needs_fn=None
        )

    @property
    def per_pixel(self) -> bool:
        """Whether the query needs per-pixel outputs, so that it works in segmentation only."""
        criteria_names = [name for name in self.needs if name not in (*MODEL_COLUMNS, *PROBE_COLUMNS)]
        return any(name in IMAGE_COLUMNS or get_criterion(name).per_pixel for name in criteria_names)

    @property
    def summary(self) -> str:
        """First line of the query's docstring."""
        return (self.fn.__doc__ or "no description").strip().splitlines()[0]

    @property
    def params_text(self) -> str:
        """Parameters and their defaults, as ``name=default, ...``."""
        parameters = list(inspect.signature(self.fn).parameters.values())[1:]
        return ", ".join(f"{param.name}={param.default}" for param in parameters)


QUERIES: Mapping[str, QuerySpec] = {
    "random": QuerySpec(uniform, needs=()),
    "entropy": QuerySpec(max_entropy, needs=("entropy",)),
    "margin": QuerySpec(min_margin, needs=("margin",)),
    "least_confident": QuerySpec(least_confident, needs=("confidence",)),
    "coreset": QuerySpec(
        coreset.coreset,
        ("features",),
        needs_with_subsampling("features"),
        source_needs_fn=coreset.coreset_source_needs,
    ),
    "badge": QuerySpec(badge.badge, ("z", "features"), needs_with_subsampling("z", "features")),
    "waal": QuerySpec(waal.waal, needs=("z", "critic")),
    "aada": QuerySpec(aada.aada, needs=("domain", "entropy")),
    "dbal": QuerySpec(dbal.dbal, needs=("features", "margin"), source_needs=("features",)),
    "tqs": QuerySpec(tqs.tqs, tqs.tqs_needs({}), tqs.tqs_needs),
    "clue": QuerySpec(clue.clue, ("z", "features"), needs_with_subsampling("z", "features")),
    "eada": QuerySpec(eada.eada, needs=("free_energy", "energy_gap")),
    "duc": QuerySpec(two_round, two_round_needs({}), two_round_needs),
    "euq": QuerySpec(euq.euq, euq.euq_needs({}), euq.euq_needs),
    "sdm": QuerySpec(sdm.sdm, needs=("z",), needs_head=True),
    "las": QuerySpec(las.las, ("z", "features"), needs_with_subsampling("z", "features")),
    "spread": QuerySpec(spread.spread, spread.spread_needs({}), spread.spread_needs),
    "u_dis": QuerySpec(max_u_dis, needs=("u_dis",)),
    "u_data": QuerySpec(max_u_data, needs=("u_data",)),
    "mada": QuerySpec(mada.mada, needs=("descriptor",), source_needs=("descriptor",)),
    "ripu": QuerySpec(ripu.ripu, needs=("impurity", "entropy")),
    "ripu_points": QuerySpec(ripu.ripu_points, ripu.ripu_points_needs({}), ripu.ripu_points_needs),
}
