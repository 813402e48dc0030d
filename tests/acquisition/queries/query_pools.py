"""Small tables of samples, contexts of queries, and their picks."""

from typing import Any

import torch
from torch import Tensor

from ducats.acquisition.queries import QUERIES, compute_columns
from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def line(*places: float) -> Tensor:
    """Features of samples on a line."""
    return torch.tensor(places, dtype=torch.float32)[:, None]


def log_alpha(*alphas: list[float]) -> Tensor:
    return torch.tensor(alphas, dtype=torch.float64).log()


def image_table(count: int, columns: dict[str, Tensor | LazyColumn], start: int = 0) -> SampleTable:
    indices = torch.arange(start, start + count)
    return SampleTable(indices, torch.zeros_like(indices), columns)


def make_context(
    samples: SampleTable,
    budget: int,
    *,
    labelled: SampleTable | None = None,
    seed: int = 0,
    source: SampleTable | None = None,
    head: Tensor | None = None,
) -> QueryContext:
    labelled = samples[torch.arange(0)] if labelled is None else labelled
    return QueryContext(samples, labelled, budget, seeded(seed), source, head)


def select(
    name: str,
    z: Tensor,
    budget: int,
    features: Tensor | None = None,
    *,
    probes: dict[str, Tensor] | None = None,
    seed: int = 0,
    labelled: int = 0,
    **params: Any,
) -> list[int]:
    """Picks of a registered query; the last samples may be labelled."""
    spec, indices = QUERIES[name].bind(params), torch.arange(len(z))
    samples = image_table(len(z), {**compute_columns(z, features, spec.needs, probes)})
    n_candidates = len(z) - labelled
    context = make_context(
        samples[indices[:n_candidates]], budget, labelled=samples[indices[n_candidates:]], seed=seed
    )
    picks: list[int] = spec.fn(context).tolist()
    return picks
