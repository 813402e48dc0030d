"""Quality of approximate queries: their picks against those of the exact query, on a synthetic pool.

    python benchmarks/queries_quality.py [--rows 100000] [--budget 0.01] [--seeds 0 1 2]
        [--only NAME ...] [--out FILE]

The pool has multi-modal classes, near-duplicates and outliers (clustered_pool.py). A seed determines the pool
and the random choices of the query. Reported for each setting: the criterion that the query itself optimises,
the mean distance of a sample to the nearest pick (for the first 10 000 samples, which are in random order),
the overlap with the exact picks, the number of classes among the picks, and the accuracy on the pool of a
linear classifier fitted to source and picks. `random` (random picks) is the baseline; `again` (the exact
query with another seed) shows the variation between seeds.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from clustered_pool import N_SOURCE, ClusteredPool, fit_linear, linear_scores, make_pool
from torch import Tensor
from torch.nn import functional as F

from ducats import dirichlet
from ducats.acquisition.criteria import probability_margin
from ducats.acquisition.queries import QUERIES, badge, coverage, las
from ducats.acquisition.queries.distances import squared_distance_to_nearest
from ducats.acquisition.queries.las import propagated_scores
from ducats.acquisition.samples import QueryContext, SampleTable
from ducats.utils.randomness import make_generator

# Parameters of each setting, the exact query first. "times": subsample size in multiples of the budget;
# "neighbours": number of samples in which LAS searches for neighbours; "share": fraction of samples for DBAL;
# "shortlist": only the samples of smallest margin, in multiples of the budget, as in `ducats score`.
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "coreset": {
        "exact": {},
        "4 shards": {"shards": 4},
        "20 shards": {"shards": 20},
        "10 b drawn": {"times": 10},
        "30 b drawn": {"times": 30},
        "10 b uncertain": {"times": 10, "subsample_by": "highest_entropy"},
        "30 b uncertain": {"times": 30, "subsample_by": "highest_entropy"},
    },
    "badge": {
        "exact": {},
        "10 b drawn": {"times": 10},
        "30 b drawn": {"times": 30},
        "10 b uncertain": {"times": 10, "subsample_by": "highest_entropy"},
        "30 b uncertain": {"times": 30, "subsample_by": "highest_entropy"},
    },
    "clue": {
        "exact": {"full_kmeans_limit": math.inf},
        "mini-batches": {"full_kmeans_limit": 0.0},
        "10 b drawn": {"times": 10, "full_kmeans_limit": math.inf},
        "30 b drawn": {"times": 30, "full_kmeans_limit": math.inf},
        "30 b drawn, mini-batches": {"times": 30, "full_kmeans_limit": 0.0},
        "10 b uncertain": {"times": 10, "subsample_by": "highest_entropy", "full_kmeans_limit": math.inf},
        "30 b uncertain": {"times": 30, "subsample_by": "highest_entropy", "full_kmeans_limit": math.inf},
    },
    "las": {
        "exact": {"max_pairs": math.inf, "full_kmeans_limit": math.inf},
        "neighbours among 50 000": {"neighbours": 50_000},
        "neighbours among 5000": {"neighbours": 5000},
        "neighbours among 500": {"neighbours": 500},
        "20 b drawn, neighbours among 20 000": {
            "times": 20,
            "subsample_by": "entropy_weighted",
            "neighbours": 20_000,
        },
        "20 b uncertain, neighbours among 20 000": {
            "times": 20,
            "subsample_by": "highest_entropy",
            "neighbours": 20_000,
        },
        "50 b uncertain, neighbours among 20 000": {
            "times": 50,
            "subsample_by": "highest_entropy",
            "neighbours": 20_000,
        },
        "20 b uncertain, neighbours among 5000": {
            "times": 20,
            "subsample_by": "highest_entropy",
            "neighbours": 5000,
        },
        "the same, mini-batches": {
            "times": 20,
            "subsample_by": "highest_entropy",
            "neighbours": 5000,
            "full_kmeans_limit": 0.0,
        },
    },
    "dbal": {
        "exact": {"subsample": 10**9},
        "subset of half": {"share": 0.5},
        "subset of a fifth": {"share": 0.2},
        "subset of a twentieth": {"share": 0.05},
    },
    "coverage": {
        "exact": {"subsample": None},
        "10 b drawn": {"times": 10},
        "30 b drawn": {"times": 30},
        "50 b drawn": {"times": 50},
        "10 b uncertain": {"times": 10, "subsample_by": "highest_entropy"},
        "30 b uncertain": {"times": 30, "subsample_by": "highest_entropy"},
        "shortlist of 10 b": {"shortlist": 10, "subsample": None},
        "shortlist of 20 b": {"shortlist": 20, "subsample": None},
        "shortlist of 30 b": {"shortlist": 30, "subsample": None},
        "shortlist of 50 b": {"shortlist": 50, "subsample": None},
    },
}
REPEATED_QUERIES = ("badge",)  # random queries that are fast enough to run twice
MAX_SAMPLES = {"dbal": 10_000}  # samples; exact DBAL needs the Manhattan distances of all pairs many times
N_DISTANCE_SAMPLES = 10_000  # samples for the mean distance to the nearest pick

# The criterion that each query optimises.
CRITERIA = {
    "coreset": "largest distance of a sample to the nearest pick",
    "badge": "mean squared distance of a gradient to that of the nearest pick",
    "clue": "mean squared distance to the nearest pick, weighted by entropy",
    "las": "mean disagreement with the neighbours (Q, higher is better)",
    "dbal": "mean Manhattan distance to the nearest label, weighted by 1 - margin",
    "coverage": "share of the uncertainty that picks cover (higher is better)",
}


def main() -> None:
    """Measure all settings, print tables, and write JSON if requested."""
    options = parse()
    cells: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name in options.only or SETTINGS:
            rows = min(options.rows, MAX_SAMPLES.get(name, options.rows))
            cells += measure(name, make_pool(rows, seed), math.ceil(options.budget * rows), seed)
            if options.out:
                about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "wants": CRITERIA}
                options.out.write_text(
                    json.dumps({"about": about, "cells": cells}, indent=1), encoding="utf-8"
                )
    for name in options.only or SETTINGS:
        query_cells = [cell for cell in cells if cell["query"] == name]
        print(f"\n{name}: {CRITERIA[name]}\n\n{results_table(query_cells)}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--budget", type=float, default=0.01, help="fraction of the samples to select")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), help="queries to measure")
    parser.add_argument("--out", type=Path, help="JSON output file, rewritten after each query")
    return parser.parse_args()


def measure(name: str, pool: ClusteredPool, budget: int, seed: int) -> list[dict[str, Any]]:
    """Measure all settings of a query on one pool, random picks, and the exact query with another seed."""
    all_pairs, exact, cells = CachedNeighbourScores(), torch.empty(0), []
    criterion, some = criterion_of(name, pool, all_pairs), pool.features[:N_DISTANCE_SAMPLES]
    settings = {**SETTINGS[name], "random": {}}
    if name in REPEATED_QUERIES:
        settings["again"] = settings["exact"]
    for setting, given in settings.items():
        params = query_params(given, len(pool.z), budget)
        kept = shortlist(pool, params.pop("shortlist", None), budget)
        spec = QUERIES["random" if setting == "random" else name].bind(params)
        samples = pool.sample_table(spec.needs)
        samples = samples if kept is None else samples[kept]
        source = None
        if spec.source_needs:
            indices = torch.arange(N_SOURCE)
            source = SampleTable(indices, torch.zeros_like(indices), {"features": pool.source})
        generator = make_generator(seed, "choice", "again" if setting == "again" else "")
        start = time.process_time()
        with torch.no_grad(), mock.patch.object(las, "propagated_scores", all_pairs):
            picks = spec.fn(QueryContext(samples, samples[torch.arange(0)], budget, generator, source))
        seconds = time.process_time() - start
        picks = picks if kept is None else kept[picks]
        exact = picks if setting == "exact" else exact
        cell = {
            "query": name,
            "setting": setting,
            "params": {key: str(value) if value == math.inf else value for key, value in params.items()},
            "seed": seed,
            "rows": len(pool.z),
            "budget": budget,
            "own": criterion(picks),
            "distance": float(squared_distance_to_nearest([some], [pool.features[picks]]).sqrt().mean()),
            "overlap": len(set(picks.tolist()) & set(exact.tolist())) / budget,
            "classes": len(pool.label[picks].unique()),
            "accuracy": accuracy(pool, picks),
            "seconds": seconds,
        }
        print(f"{name}, {setting}, seed {seed}: {cell['own']:.4g}, {seconds:.1f} s", flush=True)
        cells.append(cell)
    return cells


def shortlist(pool: ClusteredPool, times: int | None, budget: int) -> Tensor | None:
    """Return the samples of smallest margin, in order of location; None: no shortlist."""
    if times is None:
        return None
    return probability_margin(pool.z).topk(times * budget, largest=False).indices.sort().values


def query_params(given: Mapping[str, Any], rows: int, budget: int) -> dict[str, Any]:
    """Return the query parameters of a setting for a pool of this size."""
    params = dict(given)
    if "times" in params:
        params["subsample"] = params.pop("times") * budget
    if "neighbours" in params:
        n_neighbours_pool = params.pop("neighbours")
        considered = params["subsample"] + n_neighbours_pool if "subsample" in params else rows
        params["max_pairs"] = float(n_neighbours_pool * considered)
    if "share" in params:
        params["subsample"] = math.ceil(params.pop("share") * rows)
    return params


def criterion_of(
    name: str, pool: ClusteredPool, all_pairs: "CachedNeighbourScores"
) -> Callable[[Tensor], float]:
    """Return a criterion of the picks; lower is better, except for LAS and coverage."""
    features, entropy = pool.features, dirichlet.entropy(pool.z).double()
    if name == "coreset":
        return lambda picks: float(squared_distance_to_nearest([features], [features[picks]]).max().sqrt())
    if name == "badge":
        both = [badge._residual(pool.z), features]
        return lambda picks: float(squared_distance_to_nearest(both, [some[picks] for some in both]).mean())
    if name == "las":
        las_inputs = (
            F.normalize(features),
            dirichlet.expected_probability(pool.z),
            torch.arange(len(features)),
        )
        return lambda picks: float(all_pairs(*las_inputs, 10)[picks].mean())
    if name == "dbal":
        return _manhattan(pool)
    if name == "coverage":
        return _covered_share(pool)
    weight = entropy / entropy.sum()
    return lambda picks: float((weight * squared_distance_to_nearest([features], [features[picks]])).sum())


class CachedNeighbourScores:
    """Cached LAS scores: the scores from all pairs of a pool take minutes and are computed once."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None

    def __call__(self, features: Tensor, p: Tensor, neighbour_pool: Tensor, K: int) -> Tensor:
        """Return the scores of `propagated_scores`."""
        if len(neighbour_pool) < len(features):
            return propagated_scores(features, p, neighbour_pool, K)
        if self._scores is None:
            self._scores = propagated_scores(features, p, neighbour_pool, K)
        return self._scores


def _manhattan(pool: ClusteredPool) -> Callable[[Tensor], float]:
    weight = 1 - probability_margin(pool.z)

    def nearest(centres: Tensor) -> Tensor:
        distances = [torch.cdist(pool.features, some, p=1).amin(1) for some in centres.split(500)]
        return torch.stack(distances).amin(0)

    to_source = nearest(pool.source)
    return lambda picks: float(
        (weight * torch.minimum(to_source, nearest(pool.features[picks]))).sum() / weight.sum()
    )


def _covered_share(pool: ClusteredPool) -> Callable[[Tensor], float]:
    weight = 1 - probability_margin(pool.z)
    directions = F.normalize(pool.features - pool.features.mean(0))

    def share(picks: Tensor) -> float:
        cosine = torch.cat([(rows @ directions[picks].T).amax(1) for rows in directions.split(2**13)])
        kernel = ((cosine - 1) / coverage.IMAGE_TEMPERATURE).exp()
        return float((weight * kernel).sum() / weight.sum())

    return share


def accuracy(pool: ClusteredPool, picks: Tensor) -> float:
    """Return the pool accuracy of a linear classifier fitted to source and picks with equal total weight."""
    features = torch.cat([pool.source, pool.features[picks]])
    label = torch.cat([pool.source_label, pool.label[picks]])
    weight = torch.cat([torch.ones(N_SOURCE), torch.full((len(picks),), N_SOURCE / len(picks))])
    predicted = linear_scores(fit_linear(features, label, weight), pool.features).argmax(1)
    return float((predicted == pool.label).float().mean())


def results_table(cells: Sequence[dict[str, Any]]) -> str:
    """Format a row per setting: means over seeds, and the position between exact (0 %) and random (100 %)."""
    heads = ["setting", "own", "toward random", "distance", "overlap", "classes", "accuracy", "CPU s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    exact, random = (mean([c for c in cells if c["setting"] == name], "own") for name in ("exact", "random"))
    for setting in dict.fromkeys(cell["setting"] for cell in cells):
        some = [cell for cell in cells if cell["setting"] == setting]
        own = torch.tensor([cell["own"] for cell in some])
        spread = f" ± {own.std():.2g}" if len(some) > 1 else ""
        texts = [
            f"{own.mean():.4g}{spread}",
            f"{round(100 * (mean(some, 'own') - exact) / (random - exact))} %",
            f"{mean(some, 'distance'):.3g}",
            f"{100 * mean(some, 'overlap'):.0f} %",
            f"{mean(some, 'classes'):.0f}",
            f"{100 * mean(some, 'accuracy'):.1f} %",
            f"{mean(some, 'seconds'):.3g}",
        ]
        lines.append(f"| {setting} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def mean(cells: Sequence[dict[str, Any]], key: str) -> float:
    """Return the mean of a key over cells."""
    return float(sum(cell[key] for cell in cells) / len(cells))


if __name__ == "__main__":
    main()
