"""Speed of listing the samples of a pool: folder, CSV or Parquet table, tar shards.

    python benchmarks/pool_listing.py [--names 200000] [--chunks 8] [--batch 256] [--out FILE]

In a folder or table, each chunk walks over all names and keeps its own; with shards, it opens only its own
files. Reports the names per second of one chunk, counting all names it walks over, and the peak memory of the
walk (tracemalloc).
"""

import argparse
import csv
import json
import platform
import tarfile
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from ducats.data.streaming import Pool, open_pool
from ducats.data.streaming.shards import ShardPool

NAMES_PER_SHARD = 1000  # names per folder or shard


def main() -> None:
    """Measure, print, and write JSON if requested."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--names", type=int, default=200_000)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in write_pools(Path(folder), options.names).items():
            pool = open_pool(str(path))
            cells.append({"kind": kind, **measure_walk(pool, options.chunks, options.batch, options.names)})
            print(json.dumps(cells[-1]), flush=True)
    if options.out:
        about = {"machine": platform.machine(), "parts": options.chunks, "batch": options.batch}
        options.out.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n", "utf-8")


def write_pools(folder: Path, names: int) -> dict[str, Path]:
    """Write the same names as four kinds of pools with empty files."""
    import pyarrow
    import pyarrow.parquet

    keys = [f"{n // NAMES_PER_SHARD:05d}/{n:09d}.jpg" for n in range(names)]
    for start in range(0, names, NAMES_PER_SHARD):
        (folder / "files" / f"{start // NAMES_PER_SHARD:05d}").mkdir(parents=True)
    for key in keys:
        (folder / "files" / key).touch()
    with (folder / "names.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path"], *([key] for key in keys)])
    pyarrow.parquet.write_table(pyarrow.table({"path": keys}), folder / "names.parquet")
    (folder / "shards").mkdir()
    for start in range(0, names, NAMES_PER_SHARD):
        with tarfile.open(folder / "shards" / f"{start // NAMES_PER_SHARD:05d}.tar", "w") as tar:
            for key in keys[start : start + NAMES_PER_SHARD]:
                tar.addfile(tarfile.TarInfo(key.split("/")[1]))
    found = {kind: folder / f"names.{kind}" for kind in ("csv", "parquet")}
    return {"folder": folder / "files", **found, "shards": folder / "shards"}


def measure_walk(pool: Pool, n_chunks: int, batch: int, names: int) -> dict[str, Any]:
    """Walk one chunk twice: once for the time, once for the memory."""
    began = time.process_time()
    count = sum(1 for block in pool.blocks(0, n_chunks, batch) for _ in block)
    seconds = time.process_time() - began
    tracemalloc.start()
    for block in pool.blocks(0, n_chunks, batch):
        list(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n_names = count if isinstance(pool, ShardPool) else names
    return {
        "names": names,
        "of_the_part": count,
        "names_per_second": n_names / seconds,
        "peak_mb": peak / 2**20,
    }


if __name__ == "__main__":
    main()
