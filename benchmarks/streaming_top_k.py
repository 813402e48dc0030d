"""Streaming top-k selection: time and memory as the pool grows, on scores generated on the fly.

    python benchmarks/streaming_top_k.py [--scores 10000 ... 100000000] [--budget 1000] [--kappa 10]
        [--processes 1 2] [--out FILE]

Scores are generated in chunks, each seeded by its number: they are never all in memory, and they do not
depend on the number of processes. Each process keeps the kappa * budget samples of its chunks with the
highest U_dis. The results are merged, and the second round selects the budget by U_data. Each cell is
measured in fresh processes: total time, selection time (maximum over processes), and peak memory per process.
Up to a million scores, the picks are compared with those of a full sort.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ducats.acquisition.streaming_top_k import ScoredSamples, StreamingTopK, merge_top_k, select_in_two_rounds
from ducats.utils import npz_columns, resources

CHUNK_SCORES = 2**17  # scores generated at a time
MAX_SORTED_SCORES = 1_000_000  # number of scores up to which the picks are compared with a full sort


def main() -> None:
    """Measure all cells, print a table, and write JSON if requested."""
    options = parse()
    if options.child:
        rank, world, file = options.child
        run_child(options.scores[0], options.budget[0], options.kappa, int(rank), int(world), Path(file))
        return
    cells = []
    for budget in options.budget:
        for scores in options.scores:
            picks = {}
            for processes in options.processes:
                cell, picks[processes] = measure(scores, processes, budget, options.kappa)
                cells.append(cell)
                print(format_cell(cell), flush=True)
            assert len(set(picks.values())) == 1, "the number of processes changed the picks"
            if scores <= MAX_SORTED_SCORES:
                assert full_sort_picks(scores, budget, options.kappa) in picks.values(), (
                    "the picks differ from those of a full sort"
                )
    if options.out:
        about = {
            "machine": platform.processor() or platform.machine(),
            "numpy": np.__version__,
            "kappa": options.kappa,
            "chunk": CHUNK_SCORES,
        }
        options.out.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n", "utf-8")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scores", type=int, nargs="+", default=[10**power for power in range(4, 9)])
    parser.add_argument("--budget", type=int, nargs="+", default=[1000])
    parser.add_argument("--kappa", type=int, default=10)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="JSON output file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)  # rank, world size, output file
    return parser.parse_args()


def measure(scores: int, processes: int, budget: int, kappa: int) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Measure one cell in its own processes; return it with the picks."""
    command = [sys.executable, __file__, "--scores", str(scores)]
    command += ["--budget", str(budget), "--kappa", str(kappa)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{rank}.npz" for rank in range(processes)]
        began = time.perf_counter()
        children = [
            subprocess.Popen(
                [*command, "--child", str(rank), str(processes), str(file)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, file in enumerate(files)
        ]
        records = [json.loads(child.communicate()[0]) for child in children]
        merging = time.perf_counter()
        merged = merge_top_k([load_result(file) for file in files], "u_dis", kappa * budget)
        picks = select_in_two_rounds(merged, "u_dis", "u_data", kappa * budget, min(budget, len(merged)))
        end = time.perf_counter()
    assert sum(one["scores"] for one in records) == scores
    cell = {
        "scores": scores,
        "processes": processes,
        "budget": budget,
        "kept": len(merged),
        "seconds": end - began,
        "merging": end - merging,
        "selecting": max(one["selecting"] for one in records),
        "drawing": max(one["drawing"] for one in records),
        "start_mb": max(one["start"] for one in records) / 2**20,
        "peak_mb": [one["peak"] / 2**20 for one in records],
    }
    return cell, tuple(picks.key.tolist())


def run_child(scores: int, budget: int, kappa: int, rank: int, world: int, file: Path) -> None:
    """Select from the chunks of this process, write the result, and print time and memory."""
    start, drawing, selecting, n_scores = resources.peak_memory_bytes(), 0.0, 0.0, 0
    top_k = StreamingTopK("u_dis", kappa * budget)
    for number in range(rank, -(-scores // CHUNK_SCORES), world):
        began = time.perf_counter()
        chunk = make_chunk(number, scores)
        between = time.perf_counter()
        top_k.add(chunk)
        drawing, selecting = drawing + between - began, selecting + time.perf_counter() - between
        n_scores += len(chunk)
    began = time.perf_counter()
    best = top_k.top_k()
    selecting += time.perf_counter() - began
    saved = {"key": best.key.astype("S10"), "number": best.pool_index, **best.columns}
    npz_columns.write_columns(file, {name: (values, values.dtype) for name, values in saved.items()})
    print(
        json.dumps(
            {
                "scores": n_scores,
                "start": start,
                "peak": resources.peak_memory_bytes(),
                "drawing": drawing,
                "selecting": selecting,
            }
        )
    )


def make_chunk(chunk: int, scores: int) -> ScoredSamples:
    """Generate one chunk of scores with many ties, independent of the process."""
    number = np.arange(chunk * CHUNK_SCORES, min((chunk + 1) * CHUNK_SCORES, scores))
    random = np.random.default_rng([0, chunk])
    # Rounded to 1/65536: near the top of a hundred million there are thousands of ties.
    u_dis = np.round(random.standard_exponential(len(number), np.float32) * 4096) / 65536
    u_data = random.random(len(number), np.float32)
    digits = np.empty((len(number), 10), np.uint8)
    left = number.copy()
    for place in range(9, -1, -1):
        left, digits[:, place] = left // 10, left % 10 + ord("0")
    return ScoredSamples(digits.view("S10").ravel(), number, {"u_dis": u_dis, "u_data": u_data})


def full_sort_picks(scores: int, budget: int, kappa: int) -> tuple[bytes, ...]:
    """Return the picks of a full sort."""
    chunks = [make_chunk(number, scores) for number in range(-(-scores // CHUNK_SCORES))]
    key, first, second = (
        np.concatenate(parts)
        for parts in zip(*((c.key, c.columns["u_dis"], c.columns["u_data"]) for c in chunks), strict=True)
    )
    passed = np.lexsort((key, -first))[: kappa * budget]
    return tuple(key[passed[np.lexsort((key[passed], -second[passed]))[:budget]]].tolist())


def load_result(file: Path) -> ScoredSamples:
    """Load the result of a process."""
    found = npz_columns.read_columns(file, ())
    return ScoredSamples(found.pop("key"), found.pop("number"), found)


def format_cell(cell: dict[str, Any]) -> str:
    """Format one line of the table."""
    peak = ", ".join(f"{one:.0f}" for one in cell["peak_mb"])
    return (
        f"{cell['scores']:>11,} scores, {cell['processes']} process(es), budget {cell['budget']:,}: "
        f"{cell['seconds']:.1f} s, of which selecting {cell['selecting']:.2f} s, merging "
        f"{cell['merging']:.2f} s; peak {peak} MB (at the start {cell['start_mb']:.0f} MB)"
    )


if __name__ == "__main__":
    main()
