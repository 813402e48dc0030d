"""Merging chunks, in memory that does not depend on their number."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ducats.acquisition.streaming_top_k import ScoredSamples, concat_samples
from ducats.deploy.scoring.chunk import ChunkResult
from ducats.deploy.scoring.files import chunk_file, merge_chunks, missing_chunks, save_chunk
from ducats.utils.errors import UserError

N_ROWS, N_FEATURES = 300, 64


def write_chunks(folder: Path, count: int) -> list[Path]:
    """Write chunks of samples with features; return their files in order."""
    (folder / "chunks").mkdir(parents=True)
    files = [chunk_file(folder, chunk, count) for chunk in range(count)]
    for chunk, path in enumerate(files):
        random = np.random.default_rng(chunk)
        pool_index = np.arange(N_ROWS) * count + chunk
        key = np.array([f"{n:06d}.png" for n in pool_index], object)
        score = np.sort(random.integers(0, 50, N_ROWS).astype(np.float32))[::-1].copy()
        samples = ScoredSamples(
            key, pool_index, {"first": score, "features": random.random((N_ROWS, N_FEATURES), np.float32)}
        )
        save_chunk(
            path,
            ChunkResult(
                samples, concat_samples([]), N_ROWS + chunk, 1, [(f"bad-{chunk}", "reason")], 0.5, 0.4, 7
            ),
        )
    return files


def test_top_candidates_of_all_chunks_are_kept(tmp_path: Path) -> None:
    files = write_chunks(tmp_path, 5)
    found = merge_chunks(files, 60)
    rows = []
    for chunk in range(5):
        score = np.sort(np.random.default_rng(chunk).integers(0, 50, N_ROWS))[::-1]
        rows += [(-value, f"{n * 5 + chunk:06d}.png") for n, value in enumerate(score.tolist())]
    assert found.candidates.key.tolist() == [key for _, key in sorted(rows)[:60]]
    assert (found.n_samples, found.n_excluded) == (5 * N_ROWS + 10, 5)
    assert found.unreadable == [(f"bad-{chunk}", "reason") for chunk in range(5)]
    assert [(len(chunk.candidates), chunk.seconds, chunk.peak_memory_bytes) for chunk in found.chunks] == [
        (0, 0.5, 7)
    ] * 5


def test_shard_reported_by_several_chunks_counts_once(tmp_path: Path) -> None:
    files = [chunk_file(tmp_path, chunk, 3) for chunk in range(3)]
    for path in files:
        save_chunk(
            path,
            ChunkResult(concat_samples([]), concat_samples([]), 5, 0, [("x.tar", "cut off")], 0.5, 0.4, 7),
        )
    found = merge_chunks(files, 60)
    assert (found.unreadable, found.n_samples) == ([("x.tar", "cut off")], 3 * 4 + 1)


def test_memory_does_not_depend_on_number_of_chunks(tmp_path: Path) -> None:
    peaks = []
    for count in (20, 80):  # the smaller count already fills the merge buffer
        files = write_chunks(tmp_path / str(count), count)
        tracemalloc.start()
        try:
            assert missing_chunks(files) == []
            merge_chunks(files, N_ROWS)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 80 * N_ROWS * N_FEATURES * 4 / 2


def test_corrupt_chunk_counts_as_missing(tmp_path: Path) -> None:
    files = write_chunks(tmp_path, 3)
    files[1].write_bytes(files[1].read_bytes()[:100])
    files[2].unlink()
    assert missing_chunks(files) == [1, 2]
    with pytest.raises(UserError, match=r"chunk-1-of-3\.npz is corrupt"):
        merge_chunks(files, 10)
