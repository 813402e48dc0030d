"""Streaming queries: which candidates each chunk keeps, and how the picks are selected from them."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats.acquisition.criteria import compute_columns
from ducats.acquisition.queries import QUERIES, QuerySpec, StreamingRule, resolve_query
from ducats.acquisition.queries.spec import RANDOM_COLUMN
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.acquisition.streaming_top_k import ScoredSamples, merge_top_k, select_in_two_rounds
from ducats.config import Config
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator, uniform_per_location
from ducats.utils.registry import check_params

FALLBACK_QUERY = "coverage"  # of a run whose own query cannot be streamed


@dataclass(frozen=True)
class StreamingQuery:
    """Query that can be answered from a stream."""

    name: str
    budget: int  # number of picks
    n_candidates: int  # candidates kept by each chunk, and again after merging all chunks
    first_column: str  # column whose highest values are kept
    second_column: str | None = None  # column of the second of two rounds
    selects: bool = False  # whether the query itself selects from the candidates, instead of the columns
    params: Mapping[str, Any] = field(default_factory=dict)  # parameters of a query that selects

    @property
    def spec(self) -> QuerySpec:
        """The query with its parameters."""
        return resolve_query(self.name).bind(self.params)


def make_streaming_query(
    config: Config, query: str, budget: int, *, kappa: float | None = None, pool_size: int | None = None
) -> StreamingQuery:
    """Return the streaming form of a query.

    The parameters are those of the run if it uses the same query, and the defaults otherwise.

    Args:
        query: a query with a ``streaming_rule``.
        kappa: number of candidates as a multiple of the budget: those that pass the first of two rounds, or
            from which the query selects. None: the run's value, or the query's default.
        pool_size: number of samples; required if `needs_pool_size`.
    """
    spec, rule = resolve_query(query), _streaming_rule(query)
    if rule is None:
        raise UserError(
            f"--query {query} cannot score a pool; choose from: {', '.join(filter(_streaming_rule, QUERIES))}"
        )
    if kappa is not None and rule.kind == "rank":
        raise UserError(f"--kappa does not apply to --query {query}; omit it")
    if kappa is not None and not 1 <= kappa < math.inf:
        raise UserError(f"--kappa must be a finite number of at least 1, not {kappa:g}")
    params = dict(config.query.params) if config.query.name == query else {}
    columns = rule.columns_for(params)
    if rule.kind == "rank":
        return StreamingQuery(query, budget, budget, columns[0])
    candidate_factor = kappa if kappa is not None else float(params.get("kappa", rule.kappa))
    n_wanted = candidate_factor * budget
    if needs_pool_size(config, query):
        if pool_size is None:
            raise ValueError("`pool_fraction` needs the pool size")
        n_wanted = candidate_factor * params["pool_fraction"] * pool_size
    n_candidates = max(math.ceil(n_wanted - 1e-9), budget)
    if rule.kind == "two_rounds":
        return StreamingQuery(query, budget, n_candidates, columns[0], columns[1])
    if "kappa" in inspect.signature(spec.fn).parameters:
        params["kappa"] = candidate_factor
    check_params("query", query, inspect.signature(spec.fn), 1, params)
    if spec.bind(params).source_needs:
        raise UserError(
            f"the run's query {query!r} needs the source images, which are not available here; "
            "choose another --query"
        )
    return StreamingQuery(query, budget, n_candidates, columns[0], selects=True, params=params)


def default_query(config: Config) -> str:
    """Return the run's query if it can be streamed, and that of the default method otherwise."""
    return config.query.name if _streaming_rule(config.query.name) else FALLBACK_QUERY


def needs_pool_size(config: Config, query: str) -> bool:
    """Whether the number of candidates depends on the pool size for any budget."""
    rule, is_run_query = _streaming_rule(query), query == config.query.name
    has_fraction = is_run_query and config.query.params.get("pool_fraction") is not None
    return has_fraction and rule is not None and rule.kind == "two_rounds"


def _streaming_rule(query: str) -> StreamingRule | None:
    return resolve_query(query).streaming_rule


def compute_scores(
    streaming_query: StreamingQuery, z: Tensor, pool_index: Tensor, seed: int
) -> dict[str, Tensor]:
    """Compute the columns ``first`` and, if any, ``second``, each ``(N,)``; high values are selected first.

    The scores of `random` depend only on the seed and the pool index.
    """
    names = {"first": streaming_query.first_column, "second": streaming_query.second_column}
    return {key: _score_column(name, z, pool_index, seed) for key, name in names.items() if name is not None}


def _score_column(name: str, z: Tensor, pool_index: Tensor, seed: int) -> Tensor:
    if name == RANDOM_COLUMN:
        generator = make_generator(seed, "score", "random")
        return uniform_per_location(generator, pool_index, torch.zeros_like(pool_index))
    column_name = name.removeprefix("-")
    column = compute_columns(z, None, (column_name,))[column_name]
    return column if column_name == name else -column


def select_picks(
    streaming_query: StreamingQuery, candidates: ScoredSamples, labelled: ScoredSamples, seed: int
) -> ScoredSamples:
    """Select the picks, in order, from the merged candidates.

    Args:
        candidates: the top ``streaming_query.n_candidates`` samples of the pool, or all if there are fewer.
        labelled: labelled samples with their features; empty unless the query uses them.
    """
    if streaming_query.second_column is not None:
        n_candidates = streaming_query.n_candidates
        n_picks = min(streaming_query.budget, n_candidates)
        return select_in_two_rounds(candidates, "first", "second", n_candidates, n_picks)
    if not streaming_query.selects:
        return merge_top_k([candidates], "first", streaming_query.budget)
    candidates, labelled = (
        samples[np.argsort(samples.key, kind="stable")] for samples in (candidates, labelled)
    )
    query = streaming_query.spec.for_model(has_features="features" in candidates.columns)
    # Samples are numbered in key order, so ties go to the lower key here, too.
    context = QueryContext(
        _sample_table(candidates, query.needs, 0),
        _sample_table(labelled, query.needs, len(candidates)),
        min(streaming_query.budget, len(candidates)),
        make_generator(seed, "score", streaming_query.name),
    )
    return candidates[run_query(query.fn, context).numpy()]


def _sample_table(scored: ScoredSamples, needs: tuple[str, ...], start: int) -> SampleTable:
    image = torch.arange(start, start + len(scored))
    columns = {}
    if len(scored):
        z, features = torch.from_numpy(scored.columns["z"]), scored.columns.get("features")
        columns = compute_columns(z, None if features is None else torch.from_numpy(features), needs)
    return SampleTable(image, torch.zeros_like(image), columns)
