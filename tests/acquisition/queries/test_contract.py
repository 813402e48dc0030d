"""Contract of all queries, on images and on pixels."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ducats.acquisition.criteria import IMAGE_COLUMNS
from ducats.acquisition.queries import QUERIES as ALL_QUERIES
from ducats.acquisition.queries import compute_columns
from ducats.acquisition.queries.kmeans import MAX_CLUSTERS
from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable
from ducats.acquisition.units.pixel_columns import PixelColumns
from ducats.utils.errors import UserError

SHAPE = (20, 24)

# Settings for large pools fulfil the same contract.
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "clue entropy-weighted": ("clue", {"subsample": 25}),
    "clue highest entropy": (
        "clue",
        {"subsample": 25, "subsample_by": "highest_entropy", "full_kmeans_limit": 0.0},
    ),
    "badge entropy-weighted": ("badge", {"subsample": 25}),
    "badge highest entropy": ("badge", {"subsample": 25, "subsample_by": "highest_entropy"}),
    "coreset entropy-weighted": ("coreset", {"subsample": 25}),
    "coreset in shards": ("coreset", {"shards": 3}),
    "coreset in shards of the highest entropy": (
        "coreset",
        {"shards": 3, "subsample": 40, "subsample_by": "highest_entropy"},
    ),
    "las entropy-weighted": ("las", {"subsample": 25, "subsample_by": "entropy_weighted"}),
    "las with few neighbour candidates": ("las", {"max_pairs": 1000.0}),
    "las highest entropy": ("las", {"subsample": 25, "subsample_by": "highest_entropy", "max_pairs": 1000.0}),
    "dbal of a subset": ("dbal", {"subsample": 25}),
    "dbal refined": ("dbal", {"medoid_passes": 2}),
    "coverage entropy-weighted": ("coverage", {"subsample": 25}),
    "coverage highest entropy": ("coverage", {"subsample": 25, "subsample_by": "highest_entropy"}),
    "coverage by entropy": ("coverage", {"uncertainty": "entropy"}),
    "coverage on a grid": ("coverage", {"max_pixels": 30, "max_greedy": 4}),
}
SUBSAMPLING = ("badge", "clue", "coreset", "las")
QUERIES = {
    **ALL_QUERIES,
    **{label: ALL_QUERIES[name].bind(params) for label, (name, params) in LARGE.items()},
}


def probe_outputs(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random outputs of probes."""
    return {
        "domain": torch.rand(count, generator=generator),
        "critic": torch.randn(count, generator=generator),
        "committee": torch.randn(count, 4, 5, generator=generator).softmax(2),
    }


def table(name: str, count: int, pixels: bool, seed: int = 0) -> SampleTable:
    """Candidates with only the declared columns, some of them exact duplicates."""
    generator = torch.Generator().manual_seed(seed)
    needs, indices = QUERIES[name].needs, torch.arange(count)
    if pixels:
        z = torch.randn(5, *SHAPE, generator=generator) * 3
        z[:, SHAPE[0] // 2 :] = z[:, : SHAPE[0] // 2]
        features = torch.randn(8, 5, 6, generator=generator).relu()
        # Probes have their own grid.
        probe_columns = {
            k: v.movedim(0, -1).unflatten(-1, (3, 4)) for k, v in probe_outputs(12, generator).items()
        }
        pixel_columns = PixelColumns(z, features, SHAPE, probe_columns)
        position = indices * 5
        columns = (
            pixel_columns.for_regions(needs, 1, position)
            if "impurity" in needs
            else pixel_columns.for_pixels(needs, position)
        )
        return SampleTable(torch.full_like(indices, 3), position, columns, SHAPE)
    return SampleTable(indices * 2, torch.zeros_like(indices), images(needs, count, generator))


def images(needs: Sequence[str], count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Columns of images; every seventh of the second half duplicates the first."""
    z = torch.randn(count, 5, generator=generator) * 3
    features = torch.randn(count, 8, generator=generator).relu()
    probe_columns = probe_outputs(count, generator)
    image_columns = {"descriptor": torch.randn(count, 40, generator=generator)}
    for column in (z, features, *probe_columns.values(), *image_columns.values()):
        column[count // 2 :: 7] = column[0].clone()
    columns = compute_columns(
        z, features, [name for name in needs if name not in IMAGE_COLUMNS], probe_columns
    )
    return columns | {name: image_columns[name] for name in needs if name in IMAGE_COLUMNS}


def make_context(
    name: str, samples: SampleTable, budget: int, seed: int = 0, labelled: SampleTable | None = None
) -> QueryContext:
    """Context as in a run: with source and last layer only if declared."""
    spec, generator, source = QUERIES[name], torch.Generator().manual_seed(9), None
    if spec.source_needs and samples.shape is None:
        indices = torch.arange(30)
        source = SampleTable(indices, torch.zeros_like(indices), images(spec.source_needs, 30, generator))
    head = torch.randn(5, 8, generator=generator) if spec.needs_head else None
    labelled_samples = samples[torch.arange(0)] if labelled is None else labelled
    return QueryContext(samples, labelled_samples, budget, torch.Generator().manual_seed(seed), source, head)


def select(
    name: str, samples: SampleTable, budget: int, seed: int = 0, labelled: SampleTable | None = None
) -> Tensor:
    return QUERIES[name].fn(make_context(name, samples, budget, seed, labelled))


def needs_whole_images(name: str) -> bool:
    return any(need in IMAGE_COLUMNS for need in QUERIES[name].needs)


every_query = pytest.mark.parametrize("name", ALL_QUERIES)
every_kind = pytest.mark.parametrize(
    ("name", "pixels"),
    [(n, True) for n in QUERIES if not needs_whole_images(n)]
    + [(n, False) for n in QUERIES if needs_whole_images(n) or not QUERIES[n].per_pixel],
)


@every_kind
@pytest.mark.parametrize(("count", "budget"), [(60, 7), (60, 60), (5, 9), (60, 1), (60, 0), (0, 3)])
def test_distinct_within_budget_from_declared_columns(
    name: str, pixels: bool, count: int, budget: int
) -> None:
    samples = table(name, count, pixels) if count else table(name, 60, pixels)[torch.arange(0)]
    picks = select(name, samples, budget)
    assert picks.dtype == torch.long
    assert len(picks) == len(picks.unique()) == min(count, budget)
    assert not len(picks) or (picks.min() >= 0 and picks.max() < count)


@every_kind
def test_a_pool_of_identical_rows_still_spends_the_budget(name: str, pixels: bool) -> None:
    one = table(name, 20, pixels)[torch.zeros(20, dtype=torch.long)]
    columns = {column: one.column(column) for column in one.columns}
    indices = torch.arange(20)
    duplicates = SampleTable(indices, indices, columns, SHAPE if pixels else None)
    assert len(select(name, duplicates, 6).unique()) == 6


@every_kind
def test_a_permuted_pool_permutes_the_picks(name: str, pixels: bool) -> None:
    everything = table(name, 90, pixels)
    samples, labelled = everything[torch.arange(80)], everything[torch.arange(80, 90)]
    mixed = torch.randperm(80, generator=torch.Generator().manual_seed(2))
    for budget, labelled_samples in ((9, labelled), (1, labelled), (80, None)):
        picks = select(name, samples, budget, 0, labelled_samples)
        assert torch.equal(mixed[select(name, samples[mixed], budget, 0, labelled_samples)], picks)


@pytest.mark.parametrize(
    "name",
    # LAS and points of RIPU rank more regions than fit side by side.
    [n for n in QUERIES if not (needs_whole_images(n) or n.startswith(("las", "ripu_points")))],
)
def test_regions_overlap_only_if_no_other_is_left(name: str) -> None:
    samples = replace(table(name, 96, True), min_distance=4)
    position = samples.position[select(name, samples, 6)]
    row, column = position // SHAPE[1], position % SHAPE[1]
    distance = torch.maximum((row[:, None] - row).abs(), (column[:, None] - column).abs())
    assert (distance + 99 * torch.eye(6)).min() > 4
    assert len(select(name, samples, 96).unique()) == 96


# Sizes of chunks and caches, in the modules of the queries.
CHUNK_SIZES = {
    "distances.ELEMENTS_PER_CHUNK": 64,
    "distances.CENTRES_PER_CHUNK": 3,
    "distances.SIMILARITIES_PER_CHUNK": 50,
    "distances.COLUMNS_PER_CHUNK": 7,
    "distances.INITIAL_REFRESH_SIZE": 2,
    "coreset.REFRESH_GROUP_SIZE": 3,
    "coverage.ROWS_PER_BLOCK": 3,
    "coverage.ELEMENTS_PER_BLOCK": 64,
    "coverage.SAMPLES_PER_PART": 4,
    "coreset.CENTRES_PER_BLOCK": 3,
    "dbal.MAX_CACHED_DISTANCE_BYTES": 0,
    "kmeans.DISTANCES_PER_CHUNK": 50,
    **{f"{name}._SAMPLES_PER_CHUNK": 7 for name in ("clue", "tqs", "waal")},
}


@every_kind
def test_chunk_sizes_do_not_matter(name: str, pixels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = table(name, 90, pixels)
    samples, labelled = everything[torch.arange(80)], everything[torch.arange(80, 90)]
    expected = select(name, samples, 15, labelled=labelled)
    for constant, size in CHUNK_SIZES.items():
        monkeypatch.setattr(f"ducats.acquisition.queries.{constant}", size)
    assert torch.equal(select(name, samples, 15, labelled=labelled), expected)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("aada", {"pool_fraction": 1.1}),
        ("clue", {"temperature": 0}),
        ("coreset", {"centres": "nothing"}),
        ("coreset", {"shards": 0}),
        ("coverage", {"uncertainty": "u_data"}),
        ("coverage", {"power": -1.0}),
        ("coverage", {"temperature": 0.0}),
        ("coverage", {"max_pixels": 0}),
        ("coverage", {"max_greedy": 0}),
        ("coverage", {"subsample": 0}),
        ("coverage", {"subsample_by": "best"}),
        ("dbal", {"subsample": 0}),
        ("dbal", {"medoid_passes": -1}),
        ("duc", {"kappa": 0.9}),
        ("eada", {"pool_fraction": 0.0}),
        ("euq", {"kappa": 0.9}),
        ("euq", {"uncertainty": "margin"}),
        ("las", {"K": 0}),
        ("las", {"M": -0.1}),
        ("mada", {"n_anchors": 0}),
        ("ripu_points", {"radius": 0}),
        ("tqs", {"sigma": 0.0}),
        ("tqs", {"candidate_factor": 0.9}),
        *((name, {"subsample": 0}) for name in SUBSAMPLING),
        *((name, {"subsample_by": "best"}) for name in SUBSAMPLING),
    ],
)
def test_invalid_params_raise(name: str, params: dict[str, Any]) -> None:
    samples = table(name, 9, name == "ripu_points")
    with pytest.raises(ValueError, match=f"{next(iter(params))} must be"):
        ALL_QUERIES[name].fn(make_context(name, samples, 3), **params)


def lazy_features(name: str, count: int, width: int, pixels: bool, computed: list[int]) -> SampleTable:
    """Candidates with features that are computed lazily; records for how many samples."""
    indices = torch.arange(count)

    def features(position: Tensor) -> Tensor:
        computed.append(len(position))
        return torch.zeros(1, width).expand(len(position), -1)

    columns = {
        need: torch.ones(count, 2) if need == "z" else torch.ones(count) for need in QUERIES[name].needs
    }
    image, position = (indices * 0, indices) if pixels else (indices, indices * 0)
    lazy: dict[str, Tensor | LazyColumn] = {**columns, "features": LazyColumn(features, indices)}
    return SampleTable(image, position, lazy, (1, count) if pixels else None)


@pytest.mark.parametrize(
    ("name", "budget", "params", "images_remedy", "pixels_remedy"),
    [
        *((name, 3, {}, "query.params.subsample", "task.unit=superpixel") for name in ("badge", "coreset")),
        ("dbal", 3, {"subsample": 50_000}, "query.params.subsample", "task.unit=superpixel"),
        *((name, 3, {}, "query.params.subsample", "task.unit=image") for name in ("clue", "las")),
    ],
)
@pytest.mark.parametrize("pixels", [False, True])
def test_too_large_features_raise_with_a_remedy(
    name: str, budget: int, params: dict[str, Any], images_remedy: str, pixels_remedy: str, pixels: bool
) -> None:
    computed: list[int] = []
    samples = lazy_features(name, 50_000, 2**15, pixels, computed)
    with pytest.raises(UserError, match=r"6\.1 GB of features") as error:
        ALL_QUERIES[name].fn(make_context(name, samples, budget), **params)
    assert (pixels_remedy if pixels else images_remedy) in str(error.value)
    assert ("query.params.shards" in str(error.value)) == (name == "coreset" and not pixels)
    assert sum(computed) <= 1


@pytest.mark.parametrize("name", [n for n, query in ALL_QUERIES.items() if query.clusters])
def test_clusters_are_limited_unless_all_candidates_are_selected(name: str) -> None:
    computed: list[int] = []
    samples = lazy_features(name, MAX_CLUSTERS + 2, 1, True, computed)
    with pytest.raises(UserError, match=r"needs 8193 clusters.* lower acquisition.budget .* task.unit=image"):
        select(name, samples, MAX_CLUSTERS + 1)
    assert select(name, samples, MAX_CLUSTERS + 2).tolist() == list(range(MAX_CLUSTERS + 2))
    assert sum(computed) <= 1


@every_query
def test_summary_is_one_line(name: str) -> None:
    assert len(QUERIES[name].summary) > 20
    assert "\n" not in QUERIES[name].summary


@pytest.mark.parametrize("name", [n for n in QUERIES if QUERIES[n].per_pixel and not needs_whole_images(n)])
def test_queries_of_neighbourhoods_reject_images(name: str) -> None:
    with pytest.raises(UserError, match=r"defined for pixels only"):
        table(name, 5, pixels=False)


def test_random_depends_on_the_seed_and_undeclared_columns_raise() -> None:
    samples = table("random", 80, False)
    assert not torch.equal(select("random", samples, 9, seed=0), select("random", samples, 9, seed=1))
    with pytest.raises(KeyError, match="declare it"):
        select("entropy", samples, 2)


@pytest.mark.parametrize(
    ("name", "params", "needs"),
    [
        ("random", {}, ()),
        ("entropy", {}, ("entropy",)),
        ("duc", {"kappa": 3}, ("u_dis", "u_data")),
        ("duc", {"epsilon": 1e-7}, ("published_u_dis@1e-07", "u_data")),
        ("euq", {}, ("epistemic_variance", "aleatoric_variance")),
        ("euq", {"uncertainty": "entropy"}, ("u_dis", "u_data")),
        ("tqs", {}, ("margin", "committee", "domain", "confidence")),
        ("tqs", {"candidate_factor": 2}, ("margin", "committee", "domain")),
        ("ripu_points", {}, ("impurity@32", "entropy")),
        ("ripu_points", {"radius": 2}, ("impurity@2", "entropy")),
        ("coreset", {"subsample": None}, ("features",)),
        ("coverage", {}, ("margin", "features", "entropy")),
        ("coverage", {"subsample": None}, ("margin", "features")),
        ("coverage", {"uncertainty": "entropy"}, ("entropy", "features")),
        *((name, {"subsample": 5}, ("entropy", *ALL_QUERIES[name].needs)) for name in SUBSAMPLING),
    ],
)
def test_needs_depend_on_params(name: str, params: dict[str, object], needs: tuple[str, ...]) -> None:
    assert QUERIES[name].bind(params).needs == needs


@pytest.mark.parametrize(("centres", "source"), [("labelled", ()), ("source_and_labelled", ("features",))])
def test_source_columns_depend_on_params(centres: str, source: tuple[str, ...]) -> None:
    assert QUERIES["coreset"].bind({"centres": centres}).source_needs == source
    assert QUERIES["dbal"].bind({}).source_needs == ("features",)


@pytest.mark.gpu
@every_kind
def test_budget_on_a_gpu(name: str, pixels: bool) -> None:
    context = make_context(name, table(name, 60, pixels), 9)
    assert len(QUERIES[name].fn(context.to("cuda")).unique()) == 9


@pytest.mark.gpu
def test_coverage_selects_the_same_on_a_gpu() -> None:
    context = make_context("coverage", table("coverage", 300, False), 20)
    query = QUERIES["coverage"].fn
    assert query(context.to("cuda")).tolist() == query(context).tolist()
