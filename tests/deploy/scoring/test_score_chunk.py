"""One chunk of a pool, compared with `predict` and with queries over a full table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import quick
from ducats.acquisition.queries import QUERIES
from ducats.acquisition.streaming_top_k import ScoredSamples, merge_top_k
from ducats.data.folders import read_image_folder
from ducats.data.streaming import Pool, PoolSample, open_pool
from ducats.deploy import TrainedModel
from ducats.deploy.classification import PREDICTION_COLUMNS, predict_images
from ducats.deploy.scoring import ChunkResult, make_streaming_query, score_chunk, select_picks
from ducats.deploy.scoring.streaming_query import StreamingQuery, compute_scores
from ducats.run.factory import prepare_images
from ducats.run.select import select_images
from ducats.training.distributed import make_fabric
from ducats.utils.randomness import make_generator
from scoring_runs import assert_equal_samples, train_run, write_image_folder, write_shard_folder
from synthetic_pools import image_bytes, write_file

RULES = {name: spec.streaming_rule for name, spec in QUERIES.items()}
STREAMING_QUERIES = [name for name, rule in RULES.items() if rule is not None]
RANKING_QUERIES = [name for name, rule in RULES.items() if rule is not None and rule.kind == "rank"]

VIEWS = {
    "none": "views.test={crop: none}",
    "center": "views.test={crop: center, size: 6}",
    "short_side": "views.test={resize: short_side, crop: center, size: 6}",
    "bilinear": "views.test={interpolation: bilinear, crop: none}",
    "flip": "views.test={crop: none, flip: 0.5}",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return train_run(tmp_path_factory.mktemp("score") / "run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("images"))


def score_in_chunk(
    trained: TrainedModel,
    pool: Pool | Path,
    streaming_query: StreamingQuery,
    chunk: int = 0,
    n_chunks: int = 1,
    **more: Any,
) -> ChunkResult:
    more |= {"streaming_query": streaming_query, "fabric": make_fabric("cpu")}
    pool = pool if isinstance(pool, Pool) else open_pool(str(pool))
    return score_chunk(trained, pool, chunk, n_chunks, **more)


def score_all(trained: TrainedModel, pool: Pool | Path) -> ScoredSamples:
    """Return all samples, the most uncertain first."""
    return score_in_chunk(trained, pool, make_streaming_query(trained.config, "entropy", 99)).candidates


def with_view(trained: TrainedModel, view: str) -> TrainedModel:
    """Return the same model with another test view."""
    return replace(trained, config=quick("engine.scoring_batch_size=8", VIEWS[view]))


@pytest.mark.parametrize("view", ["none", "center", "short_side", "bilinear"])
def test_scores_equal_predict_bitwise(trained: TrainedModel, folder: Path, view: str) -> None:
    trained = with_view(trained, view)
    images = read_image_folder(folder, size=trained.size, channels=trained.channels)
    predictions = predict_images(
        trained, make_fabric("cpu"), prepare_images(images, trained.config.views.test)
    )
    candidates = score_all(trained, folder)
    assert len(candidates) == len(images) == 37
    order = np.argsort(candidates.pool_index)
    assert candidates.key[order].tolist() == list(images.keys)
    for name in PREDICTION_COLUMNS:
        np.testing.assert_array_equal(
            candidates.columns[name][order], predictions.columns[name].numpy(), err_msg=name
        )
    np.testing.assert_array_equal(candidates.columns["guess"][order], predictions.label.numpy())
    np.testing.assert_array_equal(candidates.columns["first"], candidates.columns["entropy"])


@pytest.mark.parametrize("kind", ["folder", "shards"])
@pytest.mark.parametrize("query", STREAMING_QUERIES)
def test_candidates_do_not_depend_on_number_of_chunks(
    trained: TrainedModel, folder: Path, tmp_path: Path, query: str, kind: str
) -> None:
    trained = with_view(trained, "flip")
    pool = folder if kind == "folder" else write_shard_folder(tmp_path, 2)
    streaming_query = make_streaming_query(
        trained.config, query, 3, kappa=None if query in RANKING_QUERIES else 4
    )
    whole = score_in_chunk(trained, pool, streaming_query)
    seed, n_candidates = trained.config.seed, streaming_query.n_candidates
    top = merge_top_k([whole.candidates], "first", n_candidates)
    picks = select_picks(streaming_query, top, whole.labelled, seed)
    assert len(picks) == 3
    for n_chunks in (2, 3):
        results = [
            score_in_chunk(trained, pool, streaming_query, chunk, n_chunks) for chunk in range(n_chunks)
        ]
        assert sum(one.n_samples for one in results) == whole.n_samples
        candidates = merge_top_k([one.candidates for one in results[::-1]], "first", n_candidates)
        assert_equal_samples(candidates, top)
        assert_equal_samples(select_picks(streaming_query, candidates, results[0].labelled, seed), picks)


@pytest.mark.parametrize("query", [name for name in STREAMING_QUERIES if name != "random"])
def test_picks_equal_the_query_over_the_full_table(trained: TrainedModel, folder: Path, query: str) -> None:
    """DUC and ranking queries are exact; the others if every image is a candidate."""
    kappa = 3.0 if query == "duc" else 20.0 if query not in RANKING_QUERIES else None
    streaming_query = make_streaming_query(trained.config, query, 4, kappa=kappa)
    result = score_in_chunk(trained, folder, streaming_query)
    picks = select_picks(streaming_query, result.candidates, result.labelled, trained.config.seed)
    images = read_image_folder(folder, size=trained.size, channels=trained.channels)
    params = {"kappa": kappa} if query == "duc" else {}
    query_spec = QUERIES[query].bind(params)
    predictor = replace(trained.predictor(make_fabric("cpu"), stream=("scoring",)), batch_size=8)
    samples = predictor.score_images(images, query_spec.needs)
    generator = make_generator(trained.config.seed, "score", query)
    request = select_images(query_spec, samples, torch.full((37,), -1), 4, 1, generator)
    assert picks.pool_index.tolist() == request.image.tolist()


def test_random_scores_depend_only_on_seed_and_pool_index(trained: TrainedModel) -> None:
    streaming_query, pool_index = make_streaming_query(trained.config, "random", 5), torch.arange(37)

    def scores(index: torch.Tensor, seed: int) -> torch.Tensor:
        return compute_scores(streaming_query, torch.randn(len(index), 2), index, seed)["first"]

    assert torch.equal(scores(pool_index, 0)[5:9], scores(pool_index[5:9], 0))
    assert len({tuple(scores(pool_index, seed).topk(5).indices.tolist()) for seed in range(20)}) == 20


def test_unreadable_samples_are_skipped_and_reported_once(trained: TrainedModel, tmp_path: Path) -> None:
    pool = write_image_folder(tmp_path / "pool", 12)
    for key, data in (("0/empty", b""), ("1/text", b"no image"), ("2/cut", image_bytes(1)[:60])):
        write_file(pool / f"{key}.png", data)
    (pool / "3" / "gone.png").symlink_to(tmp_path / "nowhere")
    streaming_query = make_streaming_query(trained.config, "entropy", 99)
    all_keys = [sample.key for sample in open_pool(str(pool)).samples(0, 1)]
    for n_chunks in (1, 2, 3):
        results = [score_in_chunk(trained, pool, streaming_query, c, n_chunks) for c in range(n_chunks)]
        unreadable = sorted(pair for one in results for pair in one.unreadable)
        keys = [key for key, _ in unreadable]
        assert keys == ["0/empty.png", "1/text.png", "2/cut.png", "3/gone.png"]
        assert sum(one.n_samples for one in results) == 16
        scored = sorted(key for one in results for key in one.candidates.key)
        assert scored == sorted(set(all_keys) - set(keys))
    reasons = [reason for _, reason in unreadable]
    assert (reasons[0], reasons[1], reasons[3]) == ("empty file", "not an image", "no such file")


class ListPool(Pool):
    """The given samples, in one chunk."""

    name = "listed"

    def __init__(self, samples: list[PoolSample]) -> None:
        self.listed = samples

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        yield from (
            self.listed[start : start + block_size] for start in range(0, len(self.listed), block_size)
        )

    def count_samples(self) -> int:
        return len(self.listed)


def test_batch_without_readable_samples(trained: TrainedModel) -> None:
    def broken() -> bytes:
        raise OSError("the store is unavailable")

    samples = [PoolSample(f"{n}.png", n, broken) for n in range(8)]
    samples += [PoolSample(f"{n}.png", n, lambda: image_bytes(1)) for n in range(8, 10)]
    result = score_in_chunk(trained, ListPool(samples), make_streaming_query(trained.config, "entropy", 99))
    assert result.unreadable == [(f"{n}.png", "the store is unavailable") for n in range(8)]
    assert result.candidates.key.tolist() == ["8.png", "9.png"]  # equal images: ties go to the lower key
    nothing = score_in_chunk(trained, ListPool(samples[:8]), make_streaming_query(trained.config, "duc", 1))
    assert (len(nothing.candidates), nothing.n_samples) == (0, 8)


def test_labelled_samples_are_excluded_but_available_to_clustering_queries(
    trained: TrainedModel, folder: Path
) -> None:
    all_scored = score_all(trained, folder)
    labelled_keys = frozenset(all_scored.key[:5])
    streaming_query = make_streaming_query(trained.config, "entropy", 4)
    left = score_in_chunk(trained, folder, streaming_query, excluded_keys=labelled_keys)
    assert left.candidates.key.tolist() == all_scored.key[5:9].tolist()
    assert (left.n_excluded, left.n_samples, len(left.labelled)) == (5, 37, 0)
    streaming_query = make_streaming_query(trained.config, "coreset", 2, kappa=20)
    result = score_in_chunk(trained, folder, streaming_query, excluded_keys=labelled_keys)
    assert set(result.labelled.key) == labelled_keys
    picks = select_picks(streaming_query, result.candidates, result.labelled, 0)
    # Reference: the candidate farthest from all labelled samples is picked first.
    own, known = result.candidates.columns["features"], result.labelled.columns["features"]
    distance = np.linalg.norm(own[:, None].astype(float) - known[None], axis=2).min(1)
    assert picks.key[0] == result.candidates.key[distance.argmax()]


@pytest.mark.parametrize(("batch_size", "expected"), [(None, [8, 16, 24, 32, 37]), (20, [20, 37])])
def test_progress_is_reported_after_each_batch(
    trained: TrainedModel, folder: Path, batch_size: int | None, expected: list[int]
) -> None:
    counts = list[int]()
    streaming_query = make_streaming_query(trained.config, "duc", 2)
    options = {"batch_size": batch_size, "on_progress": counts.append}
    result = score_in_chunk(trained, folder, streaming_query, 0, 1, **options)
    assert counts == expected
    assert len(result.candidates) == streaming_query.n_candidates == 20  # kappa times budget
