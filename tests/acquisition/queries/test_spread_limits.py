"""Limits of `spread`, checked before anything large is computed."""

import re

import pytest
import torch
from torch import Tensor

from ducats.acquisition.queries import QUERIES
from ducats.acquisition.queries.kmeans import MAX_CLUSTERS
from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable
from ducats.utils.errors import UserError


def make_context(candidates: int, budget: int, width: int, computed: list[int]) -> QueryContext:
    """A context with lazy features that records how many samples are computed."""

    def features(position: Tensor) -> Tensor:
        computed.append(len(position))
        return torch.zeros(1, width).expand(len(position), width)

    indices = torch.arange(candidates)
    entropy = torch.ones(candidates)
    columns: dict[str, Tensor | LazyColumn] = {"entropy": entropy, "features": LazyColumn(features, indices)}
    samples = SampleTable(torch.zeros_like(indices), indices, columns, (1, candidates))
    return QueryContext(samples, samples[indices[:0]], budget, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("candidates", "budget", "width", "message"),
    [
        (MAX_CLUSTERS + 2, MAX_CLUSTERS + 1, 1, "needs 8193 clusters"),
        (50_000, 2_000, 2**15, "needs to cluster 4.9 GB of features"),
    ],
)
def test_too_much_for_k_means_raises(candidates: int, budget: int, width: int, message: str) -> None:
    computed: list[int] = []
    remedies = "lower acquisition.budget .* task.unit=image"
    with pytest.raises(UserError, match=f"{re.escape(message)}.* {remedies}"):
        QUERIES["spread"].fn(make_context(candidates, budget, width, computed))
    assert sum(computed) <= 1


def test_no_clustering_if_all_candidates_are_selected() -> None:
    computed: list[int] = []
    found = QUERIES["spread"].fn(make_context(MAX_CLUSTERS + 9, MAX_CLUSTERS + 9, 1, computed))
    assert found.tolist() == list(range(MAX_CLUSTERS + 9))
    assert computed == []
