"""Time and peak memory of merging the chunks of a scored pool, by number of chunks.

    python benchmarks/merge_chunks.py [--chunks 4 12] [--rows 1000000] [--out FILE]

Each chunk on disk has as many samples as the merged result, with keys of 36 characters. Each measurement runs
in its own process.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ducats.acquisition.streaming_top_k import ScoredSamples, concat_samples
from ducats.deploy.scoring.chunk import ChunkResult
from ducats.deploy.scoring.files import chunk_file, merge_chunks, save_chunk
from ducats.utils import resources

COLUMNS = ("probability", "entropy", "u_data", "u_dis", "second")


def main() -> None:
    """Measure, print, and write JSON if requested."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--chunks", type=int, nargs="+", default=[4, 12])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cells = []
    for n_chunks in options.chunks:
        with tempfile.TemporaryDirectory() as folder:
            files = write_chunks(Path(folder), n_chunks, options.rows)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                cells.append(pool.apply(measure_merge, (files, options.rows)))
        print(json.dumps(cells[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"cells": cells}, indent=1) + "\n", "utf-8")


def write_chunks(folder: Path, n_chunks: int, n_samples: int) -> list[Path]:
    """Write chunks with random scores."""
    files = [chunk_file(folder, rank, n_chunks) for rank in range(n_chunks)]
    files[0].parent.mkdir()
    for rank, path in enumerate(files):
        random, number = np.random.default_rng(rank), np.arange(n_samples) * n_chunks + rank
        key = np.array([f"train/shard-{n // 10000:06d}/{n:013d}.jpg" for n in number.tolist()], object)
        columns = {name: random.random(n_samples, np.float32) for name in COLUMNS}
        columns |= {"first": np.sort(random.random(n_samples, np.float32))[::-1].copy()}
        columns |= {"guess": np.zeros(n_samples, np.int16)}
        samples = ScoredSamples(key, number, columns)
        save_chunk(path, ChunkResult(samples, concat_samples([]), n_samples, 0, [], 1.0, 1.0, None))
    return files


def measure_merge(files: list[Path], n_samples: int) -> dict[str, Any]:
    """Merge the chunks in this process; return time and memory."""
    before = resources.peak_memory_bytes() or 0
    began = time.process_time()
    merged = merge_chunks(files, n_samples)
    seconds = time.process_time() - began
    after = resources.peak_memory_bytes() or 0
    result = {
        "parts": len(files),
        "rows": len(merged.candidates),
        "mb_of_a_part": files[0].stat().st_size / 2**20,
    }
    return {**result, "cpu_seconds": seconds, "peak_mb": after / 2**20, "before_mb": before / 2**20}


if __name__ == "__main__":
    main()
