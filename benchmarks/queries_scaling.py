"""Scaling of queries: time and memory of one selection as the pool grows.

    python benchmarks/queries_scaling.py --rows 10000 100000 1000000 [--only NAME[:PARAM=VALUE,...] ...]
        [--features 256] [--classes 65] [--budget 0.01 --max-picks 5000] [--limit 600] [--device cuda]
        [--out FILE]
    python benchmarks/queries_scaling.py --rows 10000000 --disk FOLDER [--memory 8] ...

Samples are images with random columns; only the columns that a query reads are generated. Each cell runs in a
fresh process, and its peak memory is counted in addition to the table itself. Prints a Markdown table of wall
time, CPU time and memory, with the exponent of the growth between sizes. A cell that exceeds the limit of CPU
seconds or memory is killed and reported as such; other load on the machine does not count.

With --device cuda, the table is on the GPU, and the memory is that of the GPU, with the table.

With --disk, log alpha and features are stored in a folder in half precision (640 MB per million samples),
read when a query accesses them, and removed at the end. Scalar columns stay in memory.
"""

import argparse
import json
import math
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from stored_columns import load_columns, store_columns
from torch import Tensor

from ducats.acquisition.criteria import compute_columns
from ducats.acquisition.queries import QUERIES, QuerySpec
from ducats.acquisition.samples import LazyColumn, QueryContext, SampleTable, run_query
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator

IMAGE_QUERIES = [name for name, spec in QUERIES.items() if not spec.per_pixel]
OPTIONS = (
    "features",
    "classes",
    "budget",
    "max_picks",
    "limit",
    "memory",
    "device",
)  # passed on to each process
WIDE_COLUMNS = ("z", "features")  # columns that may be stored on disk
N_COMMITTEE_MEMBERS = 5  # members of a committee
N_SOURCE = 10_000  # number of source images, for queries that read the source
BLOCK_SAMPLES = 1000  # samples generated at a time; small, to keep the peak memory that of the query


def main() -> None:
    """Measure all cells, print a table, and write JSON if requested."""
    options = parse()
    if options.child:
        child(options)
        return
    about = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{k: getattr(options, k) for k in OPTIONS},
    }
    cells = []
    for rows in options.rows:
        with columns_on_disk(rows, options):
            for name in options.only or IMAGE_QUERIES:
                cells.append({"query": name, "rows": rows, **measure(name, rows, options)})
                print(f"{name} of {rows}: {format_cell(cells[-1])}", file=sys.stderr, flush=True)
                if options.out:
                    text = json.dumps({"about": about, "cells": cells}, indent=1)
                    options.out.write_text(text, encoding="utf-8")
    print(results_table(cells, options.rows))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--only", nargs="+", type=check_query_name, help="queries to measure (default: all image queries)"
    )
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=65)
    parser.add_argument("--budget", type=float, default=0.01, help="fraction of the samples to select")
    parser.add_argument("--max-picks", type=int, default=5000, help="upper limit of the budget")
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds per cell")
    parser.add_argument(
        "--memory", type=float, default=8.0, help="gigabytes per cell, in addition to the table"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--disk", type=Path, help="new folder for the wide columns")
    parser.add_argument("--out", type=Path, help="JSON output file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.disk and options.disk.exists() and not options.child:
        parser.error(f"{options.disk} already exists; pass a new folder")
    return options


@contextmanager
def columns_on_disk(rows: int, options: argparse.Namespace) -> Iterator[None]:
    """Store the wide columns on disk within the context, if --disk is set."""
    if options.disk is None:
        yield
        return
    try:
        store_columns(options.disk, rows, generate_columns(WIDE_COLUMNS, rows, 0, options))
        yield
    finally:
        shutil.rmtree(options.disk)


def check_query_name(text: str) -> str:
    """Check a query name, optionally followed by parameters."""
    if text.partition(":")[0] not in IMAGE_QUERIES:
        raise argparse.ArgumentTypeError(f"unknown query {text}; available: {', '.join(IMAGE_QUERIES)}")
    return text


def parse_query(text: str) -> QuerySpec:
    """Parse a query with its parameters: ``clue``, ``clue:subsample=1000000,full_kmeans_limit=0``."""
    name, _, text_params = text.partition(":")
    params = dict[str, Any]()
    for assignment in text_params.split(",") if text_params else []:
        key, _, value = assignment.partition("=")
        try:
            params[key] = json.loads(value)
        except json.JSONDecodeError:
            params[key] = value
    return QUERIES[name].bind(params)


def measure(name: str, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one cell in its own process."""
    command = [sys.executable, __file__, "--child", "--only", name, "--rows", str(rows)]
    for key in OPTIONS:
        command += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
    if options.disk:
        command += ["--disk", str(options.disk)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode == -signal.SIGXCPU:
        return {"over": options.limit}
    if process.returncode:
        return {"failed": process.returncode}
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def child(options: argparse.Namespace) -> None:
    """Generate the samples, run the query, and print time and memory."""
    name, rows = options.only[0], options.rows[0]
    budget = min(math.ceil(options.budget * rows), options.max_picks)
    context = make_context(name, rows, budget, options)
    on_gpu = options.device != "cpu"
    memory_before = 0.0 if on_gpu else peak_memory_mb()
    if on_gpu:  # with its own memory; the limit of the host's memory would include CUDA's address space
        context = context.to(options.device)
        run_query(
            parse_query(name).fn, make_context(name, 1000, 10, options).to(options.device)
        )  # load kernels
    else:
        set_limits(options.limit, options.memory)
    start, worked = time.perf_counter(), time.process_time()
    try:
        with torch.no_grad():
            run_query(parse_query(name).fn, context).cpu()
    except UserError as error:
        print(json.dumps({"refused": str(error)}))
        return
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        print(json.dumps({"over_memory": options.memory}))
        return
    seconds, cpu = time.perf_counter() - start, time.process_time() - worked
    result = {
        "budget": budget,
        "seconds": seconds,
        "cpu": cpu,
        "mb": (torch.cuda.max_memory_allocated() / 1e6 if on_gpu else peak_memory_mb()) - memory_before,
        "table_mb": memory_before,
    }
    print(json.dumps(result))


def make_context(name: str, rows: int, budget: int, options: argparse.Namespace) -> QueryContext:
    """Generate a query context: candidates, ``budget`` labelled samples, and a source if it is read."""
    spec = parse_query(name)
    candidates, labelled, source = (
        SampleTable(
            torch.arange(count),
            torch.zeros(count, dtype=torch.long),
            make_columns(needs, count, part, options, options.disk if part == 0 else None),
        )
        for part, (count, needs) in enumerate(
            ((rows, spec.needs), (budget, spec.needs), (N_SOURCE, spec.source_needs))
        )
    )
    head = torch.randn(options.classes, options.features, generator=make_generator(0, "head"))
    return QueryContext(
        candidates,
        labelled,
        budget,
        make_generator(0, "query"),
        source if spec.source_needs else None,
        head if spec.needs_head else None,
    )


def make_columns(
    needs: Sequence[str], count: int, part: int, options: argparse.Namespace, disk: Path | None
) -> dict[str, Tensor | LazyColumn]:
    """Generate columns, or load the wide ones from disk if stored there."""
    wide = {} if disk is None else select_columns(load_columns(disk), needs)
    narrow = [name for name in needs if name not in wide]
    filled = dict[str, Tensor]()
    for start, block in enumerate(generate_columns(narrow, count, part, options) if narrow else ()):
        for key, column in block.items():
            column_out = filled.setdefault(key, column.new_empty(count, *column.shape[1:]))
            column_out[start * BLOCK_SAMPLES : start * BLOCK_SAMPLES + len(column)] = column
    return {**filled, **wide}


_T = TypeVar("_T")


def select_columns(columns: Mapping[str, _T], names: Sequence[str]) -> dict[str, _T]:
    """Return the columns with the given names."""
    return {name: column for name, column in columns.items() if name in names}


def generate_columns(
    needs: Sequence[str], count: int, part: int, options: argparse.Namespace
) -> Iterator[dict[str, Tensor]]:
    """Yield columns in blocks: one centre per class, with noise as large as the distances between centres."""
    centres = torch.randn(options.classes, options.features, generator=make_generator(0, "centres"))
    for start in range(0, count, BLOCK_SAMPLES):
        generator, some = make_generator(0, "rows", part, start), min(BLOCK_SAMPLES, count - start)
        kind = torch.randint(0, options.classes, (some,), generator=generator)
        features = torch.randn(some, options.features, generator=generator).add_(centres[kind]).relu_()
        z = torch.randn(some, options.classes, generator=generator)
        z[torch.arange(some), kind] += 3
        extras = {
            "domain": torch.rand(some, generator=generator),
            "critic": torch.randn(some, generator=generator),
        }
        if "committee" in needs:
            noise = torch.randn(some, N_COMMITTEE_MEMBERS, options.classes, generator=generator)
            extras["committee"] = noise.add_(z[:, None]).softmax(2)
        yield compute_columns(z, features, needs, extras)


def set_limits(seconds: int, gigabytes: float) -> None:
    """Limit the additional CPU seconds and memory of this process.

    The memory limit needs ``/proc``.
    """
    last = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (last, last + 1))
    statm = Path("/proc/self/statm")
    if statm.exists():
        current_bytes = int(statm.read_text(encoding="utf-8").split()[5]) * resource.getpagesize()
        max_bytes = current_bytes + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def peak_memory_mb() -> float:
    """Return the peak memory of this process in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def format_cell(cell: dict[str, Any]) -> str:
    """Format a cell."""
    if "over" in cell:
        return f"over {cell['over']} s"
    if "over_memory" in cell:
        return f"over {cell['over_memory']:g} GB"
    if "refused" in cell:
        return f"refused: {cell['refused']}"
    if "failed" in cell:
        return f"failed ({cell['failed']})"
    return f"{cell['seconds']:.3g} s ({cell['cpu']:.3g}), {cell['mb']:.0f} MB"


def results_table(cells: Sequence[dict[str, Any]], sizes: Sequence[int]) -> str:
    """Format a table: a row per query, a column per size, and the growth exponents between sizes."""
    heads = [f"n = {size}" for size in sizes] + [f"{a} → {b}" for a, b in pairwise(sizes)]
    lines = ["| query | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name in dict.fromkeys(cell["query"] for cell in cells):
        row = [cell for cell in cells if cell["query"] == name]
        texts = [format_cell(cell).split(":")[0] for cell in row]
        texts += [growth(a, b) for a, b in pairwise(row)]
        lines.append(f"| `{name}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def growth(small: dict[str, Any], large: dict[str, Any]) -> str:
    """Return the slope between two cells on a log-log scale."""
    if "seconds" not in small or "seconds" not in large or small["rows"] == large["rows"]:
        return "–"
    slope = math.log(large["seconds"] / small["seconds"]) / math.log(large["rows"] / small["rows"])
    return f"n^{slope:.2f}"


if __name__ == "__main__":
    main()
