"""Streaming queries: which candidates each chunk keeps, and how the picks are selected from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ducats.acquisition import queries
from ducats.acquisition.criteria import compute_columns
from ducats.acquisition.queries.two_round import two_round_needs
from ducats.acquisition.samples import QueryContext, SampleTable, run_query
from ducats.acquisition.streaming_top_k import ScoredSamples, merge_top_k, select_in_two_rounds
from ducats.config import Config
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator, uniform_per_location

DEFAULT_KAPPA = 10.0  # default number of candidates, as a multiple of the budget
RANDOM_COLUMN = "random"  # column of uniform random numbers

# Ranking column of each query; a leading minus ranks the lowest first.
RANKING_COLUMNS: Mapping[str, str] = {
    "u_dis": "u_dis",
    "u_data": "u_data",
    "entropy": "entropy",
    "margin": "-margin",
    "least_confident": "-confidence",
    "random": RANDOM_COLUMN,
}
CLUSTERING_QUERIES = ("spread", "clue", "badge", "coreset")  # they use the features of the last layer
STREAMING_QUERIES = ("duc", *RANKING_COLUMNS, *CLUSTERING_QUERIES)


@dataclass(frozen=True)
class StreamingQuery:
    """Query that can be answered from a stream."""

    name: str
    budget: int  # number of picks
    n_candidates: int  # candidates kept by each chunk, and again after merging all chunks
    first_column: str  # column whose highest values are kept
    second_column: str | None = None  # column of DUC's second round
    params: Mapping[str, Any] = field(default_factory=dict)  # parameters of a clustering query

    @property
    def needs_features(self) -> bool:
        """Whether the candidates need their features."""
        return self.name in CLUSTERING_QUERIES


def make_streaming_query(
    config: Config, query: str, budget: int, *, kappa: float | None = None, pool_size: int | None = None
) -> StreamingQuery:
    """Return the streaming form of a query.

    The parameters are those of the run if it uses the same query, and the defaults otherwise.

    Args:
        query: one of ``STREAMING_QUERIES``.
        budget: number of picks.
        kappa: number of candidates as a multiple of the budget: those that pass the first round (`duc`), are
            clustered (`spread`), or are kept at all (`clue`, `badge`, `coreset`). None: the run's value, or
            10.
        pool_size: number of samples; required if the run's `duc` sets ``pool_fraction``.
    """
    if query not in STREAMING_QUERIES:
        raise UserError(f"--query {query} cannot score a pool; choose from: {', '.join(STREAMING_QUERIES)}")
    if kappa is not None and (not 1 <= kappa < math.inf or query in RANKING_COLUMNS):
        raise UserError(
            f"--kappa does not apply to --query {query}; omit it"
            if query in RANKING_COLUMNS
            else f"--kappa must be a finite number of at least 1, not {kappa:g}"
        )
    if query in RANKING_COLUMNS:
        return StreamingQuery(query, budget, budget, RANKING_COLUMNS[query])
    params = dict(config.query.params) if config.query.name == query else {}
    candidate_factor = kappa if kappa is not None else float(params.get("kappa", DEFAULT_KAPPA))
    if query == "duc":
        return _duc_query(params, budget, candidate_factor, pool_size)
    n_candidates, first_column = max(math.ceil(candidate_factor * budget - 1e-9), budget), "entropy"
    if query == "spread":
        params["kappa"], first_column = candidate_factor, params.get("candidates_by", "entropy")
        first_column = "-margin" if first_column == "margin" else first_column
    if queries.QUERIES[query].bind(params).source_needs:
        raise UserError(
            f"the run's query {query!r} needs the source images, which are not available here; "
            "choose another --query"
        )
    return StreamingQuery(query, budget, n_candidates, first_column, params=params)


def default_query(config: Config) -> str:
    """Return the run's query if it can be streamed, and `duc` otherwise."""
    return config.query.name if config.query.name in STREAMING_QUERIES else "duc"


def needs_pool_size(config: Config, query: str) -> bool:
    """Whether the number of candidates depends on the pool size for any budget."""
    return query == "duc" == config.query.name and config.query.params.get("pool_fraction") is not None


def _duc_query(params: Mapping[str, Any], budget: int, kappa: float, pool_size: int | None) -> StreamingQuery:
    u_dis_column, u_data_column = two_round_needs(params)
    round_columns = (
        (u_dis_column, u_data_column)
        if params.get("order", "dis_data") == "dis_data"
        else (u_data_column, u_dis_column)
    )
    pool_fraction = params.get("pool_fraction")
    n_wanted = kappa * budget
    if pool_fraction is not None:
        if pool_size is None:
            raise ValueError("`pool_fraction` needs the pool size")
        n_wanted = kappa * pool_fraction * pool_size
    return StreamingQuery("duc", budget, max(math.ceil(n_wanted - 1e-9), budget), *round_columns)


def compute_scores(
    streaming_query: StreamingQuery, z: Tensor, pool_index: Tensor, seed: int
) -> dict[str, Tensor]:
    """Compute the columns ``first`` and, if any, ``second``, each ``(N,)``; high values are selected first.

    Args:
        z: log alpha, ``(N, C)``.
        pool_index: pool indices, ``(N,)``.
        seed: seed of `random`, whose scores depend only on the pool index.
    """
    columns = {"first": _score_column(streaming_query.first_column, z, pool_index, seed)}
    if streaming_query.second_column is not None:
        columns["second"] = _score_column(streaming_query.second_column, z, pool_index, seed)
    return columns


def _score_column(name: str, z: Tensor, pool_index: Tensor, seed: int) -> Tensor:
    if name == RANDOM_COLUMN:
        return uniform_per_location(
            make_generator(seed, "score", "random"), pool_index, torch.zeros_like(pool_index)
        )
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
        return select_in_two_rounds(
            candidates,
            "first",
            "second",
            streaming_query.n_candidates,
            min(streaming_query.budget, streaming_query.n_candidates),
        )
    if not streaming_query.needs_features:
        return merge_top_k([candidates], "first", streaming_query.budget)
    candidates, labelled = (
        samples[np.argsort(samples.key, kind="stable")] for samples in (candidates, labelled)
    )
    query = queries.QUERIES[streaming_query.name].bind(streaming_query.params)
    # Samples are numbered in key order, so ties go to the lower key here, too.
    candidate_table, labelled_table = (
        _sample_table(candidates, query.needs, 0),
        _sample_table(labelled, query.needs, len(candidates)),
    )
    generator = make_generator(seed, "score", streaming_query.name)
    context = QueryContext(
        candidate_table, labelled_table, min(streaming_query.budget, len(candidates)), generator
    )
    return candidates[run_query(query.fn, context).numpy()]


def _sample_table(scored: ScoredSamples, needs: tuple[str, ...], start: int) -> SampleTable:
    image = torch.arange(start, start + len(scored))
    columns = {}
    if len(scored):
        z, features = (torch.from_numpy(scored.columns[name]) for name in ("z", "features"))
        columns = compute_columns(z, features, needs)
    return SampleTable(image, torch.zeros_like(image), columns)
