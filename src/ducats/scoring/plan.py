"""Streaming queries: which candidates each chunk keeps, and how the picks are selected from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats import queries
from ducats.config import Config
from ducats.criteria import compute_columns
from ducats.errors import UserError
from ducats.queries.two_round import two_round_needs
from ducats.randomness import make_generator, uniform_per_location
from ducats.samples import QueryContext, SampleTable, run_query
from ducats.streaming_top_k import ScoredSamples, merge_top_k, two_round_top_k

KAPPA = 10.0  # default number of candidates, as a multiple of the budget
LUCK = "luck"  # column of uniform random numbers

# Ranking column of each query; a leading minus ranks the lowest first.
RANKED: Mapping[str, str] = {
    "u_dis": "u_dis",
    "u_data": "u_data",
    "entropy": "entropy",
    "margin": "-margin",
    "least_confident": "-confidence",
    "random": LUCK,
}
CLUSTERED = ("spread", "clue", "badge", "coreset")  # they use the features of the last layer
QUERIES = ("duc", *RANKED, *CLUSTERED)


@dataclass(frozen=True)
class Plan:
    """Query that can be answered from a stream."""

    query: str
    budget: int  # number of picks
    keep: int  # candidates kept by each chunk, and again after merging all chunks
    first: str  # column whose highest values are kept
    second: str | None = None  # column of DUC's second round
    params: Mapping[str, Any] = field(default_factory=dict)  # parameters of a clustering query

    @property
    def features(self) -> bool:
        """Whether the candidates need their features."""
        return self.query in CLUSTERED


def make_plan(
    config: Config, query: str, budget: int, *, kappa: float | None = None, pool: int | None = None
) -> Plan:
    """Return the streaming form of a query.

    The parameters are those of the run if it uses the same query, and the defaults otherwise.

    Args:
        query: one of ``QUERIES``.
        budget: number of picks.
        kappa: number of candidates as a multiple of the budget: those that pass the first round (`duc`), are
            clustered (`spread`), or are kept at all (`clue`, `badge`, `coreset`). None: the run's value, or
            10.
        pool: number of samples; required if the run's `duc` sets ``share``.
    """
    if query not in QUERIES:
        raise UserError(f"--query {query} cannot score a pool; choose from: {', '.join(QUERIES)}")
    if kappa is not None and (not 1 <= kappa < math.inf or query in RANKED):
        raise UserError(
            f"--kappa does not apply to --query {query}; omit it"
            if query in RANKED
            else f"--kappa must be a finite number of at least 1, not {kappa:g}"
        )
    if query in RANKED:
        return Plan(query, budget, budget, RANKED[query])
    params = dict(config.query.params) if config.query.name == query else {}
    times = kappa if kappa is not None else float(params.get("kappa", KAPPA))
    if query == "duc":
        return _duc(params, budget, times, pool)
    keep, first = max(math.ceil(times * budget - 1e-9), budget), "entropy"
    if query == "spread":
        params["kappa"], first = times, params.get("candidates", "entropy")
        first = "-margin" if first == "margin" else first
    if queries.QUERIES[query].bind(params).source_needs:
        raise UserError(
            f"the run's query {query!r} needs the source images, which are not available here; "
            "choose another --query"
        )
    return Plan(query, budget, keep, first, params=params)


def own_query(config: Config) -> str:
    """Return the run's query if it can be streamed, and `duc` otherwise."""
    return config.query.name if config.query.name in QUERIES else "duc"


def needs_the_pools_size(config: Config, query: str) -> bool:
    """Whether the number of candidates depends on the pool size for any budget."""
    return query == "duc" == config.query.name and config.query.params.get("share") is not None


def _duc(params: Mapping[str, Any], budget: int, kappa: float, pool: int | None) -> Plan:
    distribution, data = two_round_needs(params)
    in_turn = (distribution, data) if params.get("order", "dis_data") == "dis_data" else (data, distribution)
    share = params.get("share")
    wanted = kappa * budget
    if share is not None:
        if pool is None:
            raise ValueError("`share` needs the pool size")
        wanted = kappa * share * pool
    return Plan("duc", budget, max(math.ceil(wanted - 1e-9), budget), *in_turn)


def scores(plan: Plan, z: Tensor, number: Tensor, seed: int) -> dict[str, Tensor]:
    """Compute the columns ``first`` and, if any, ``second``, each ``(N,)``; high values are selected first.

    Args:
        z: log alpha, ``(N, C)``.
        number: pool indices, ``(N,)``.
        seed: seed of `random`, whose scores depend only on the pool index.
    """
    columns = {"first": _score(plan.first, z, number, seed)}
    if plan.second is not None:
        columns["second"] = _score(plan.second, z, number, seed)
    return columns


def _score(name: str, z: Tensor, number: Tensor, seed: int) -> Tensor:
    if name == LUCK:
        return uniform_per_location(make_generator(seed, "score", "random"), number, torch.zeros_like(number))
    plain = name.removeprefix("-")
    column = compute_columns(z, None, (plain,))[plain]
    return column if plain == name else -column


def choose(plan: Plan, kept: ScoredSamples, known: ScoredSamples, seed: int) -> ScoredSamples:
    """Select the picks, in order, from the merged candidates.

    Args:
        kept: the top ``plan.keep`` samples of the pool, or all if there are fewer.
        known: labelled samples with their features; empty unless the query uses them.
    """
    if plan.second is not None:
        return two_round_top_k(kept, "first", "second", plan.keep, min(plan.budget, plan.keep))
    if not plan.features:
        return merge_top_k([kept], "first", plan.budget)
    kept, known = (some[np.argsort(some.key, kind="stable")] for some in (kept, known))
    strategy = queries.QUERIES[plan.query].bind(plan.params)
    # Samples are numbered in key order, so ties go to the lower key here, too.
    candidates, labelled = _rows(kept, strategy.needs, 0), _rows(known, strategy.needs, len(kept))
    generator = make_generator(seed, "score", plan.query)
    slate = QueryContext(candidates, labelled, min(plan.budget, len(kept)), generator)
    return kept[run_query(strategy.fn, slate).numpy()]


def _rows(some: ScoredSamples, needs: tuple[str, ...], start: int) -> SampleTable:
    image = torch.arange(start, start + len(some))
    columns = {}
    if len(some):
        z, features = (torch.from_numpy(some.columns[name]) for name in ("z", "features"))
        columns = compute_columns(z, features, needs)
    return SampleTable(image, torch.zeros_like(image), columns)
