"""Scale of queries: seconds and memory of one round of picking, as the pool grows.

    python benchmarks/queries.py --rows 10000 100000 1000000 [--only NAME[:KNOB=VALUE,...] ...]
        [--features 256] [--classes 65] [--budget 0.01 --most 5000] [--limit 600] [--out FILE]
    python benchmarks/queries.py --rows 10000000 --disk FOLDER [--memory 8] ...

Rows are images: columns are drawn, and only those that a query reads. Each cell is a fresh process, so that
its peak of memory is its own; the peak is counted above what the table itself holds. Prints a Markdown table
of seconds, of these on the CPU, and memory, with the growth between sizes, n to the power of. One over the
limit of seconds on the CPU is killed, and said to be, and so is one over the limit of memory: what else the
machine does has no say in it.

With --disk, log alpha and features lie in a folder in half precision (640 MB for a million rows), are read
when a query looks at them, and are removed in the end. Single numbers per row are in memory as ever.
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
from stored_columns import store, stored
from torch import Tensor

from ducats.criteria import columns_of
from ducats.errors import UserError
from ducats.queries import QUERIES, Strategy
from ducats.randomness import fork
from ducats.rows import Deferred, Rows, Slate, ask

IMAGES = [name for name, strategy in QUERIES.items() if not strategy.of_pixels]
WIDE = ("z", "features")  # columns that may lie on disk
MEMBERS = 5  # of a committee
SOURCE = 10_000  # images of the source, where a query reads them
AT_ONCE = 1000  # rows that are drawn at a time, so that no peak of drawing hides one of picking


def main() -> None:
    """Measure every cell, print a table, write JSON if asked."""
    options = parse()
    if options.child:
        child(options)
        return
    about = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{k: getattr(options, k) for k in ("features", "classes", "budget", "most", "limit", "memory")},
    }
    cells = []
    for rows in options.rows:
        with on_disk(rows, options):
            for name in options.only or IMAGES:
                cells.append({"query": name, "rows": rows, **measure(name, rows, options)})
                print(f"{name} of {rows}: {shown(cells[-1])}", file=sys.stderr, flush=True)
                if options.out:
                    said = json.dumps({"about": about, "cells": cells}, indent=1)
                    options.out.write_text(said, encoding="utf-8")
    print(table(cells, options.rows))


def parse() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", type=known, help="these queries; else all that know images")
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=65)
    parser.add_argument("--budget", type=float, default=0.01, help="share of the rows that is picked")
    parser.add_argument("--most", type=int, default=5000, help="picks")
    parser.add_argument("--limit", type=int, default=600, help="seconds of a cell, on the CPU")
    parser.add_argument("--memory", type=float, default=8.0, help="gigabytes of a cell, above the table")
    parser.add_argument("--disk", type=Path, help="a folder that is not there yet, for wide columns")
    parser.add_argument("--out", type=Path, help="write JSON there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.disk and options.disk.exists() and not options.child:
        parser.error(f"{options.disk} is there already")
    return options


@contextmanager
def on_disk(rows: int, options: argparse.Namespace) -> Iterator[None]:
    """Wide columns lie in a folder inside the block, if one was named."""
    if options.disk is None:
        yield
        return
    try:
        store(options.disk, rows, drawn_columns(WIDE, rows, 0, options))
        yield
    finally:
        shutil.rmtree(options.disk)


def known(text: str) -> str:
    """A query's name, knobs behind it."""
    if text.partition(":")[0] not in IMAGES:
        raise argparse.ArgumentTypeError(f"no query {text}; there are: {', '.join(IMAGES)}")
    return text


def strategy_of(text: str) -> Strategy:
    """A query with its knobs: ``clue``, ``clue:among=1000000,chosen=drawn``."""
    name, _, given = text.partition(":")
    knobs = dict[str, Any]()
    for one in given.split(",") if given else []:
        key, _, value = one.partition("=")
        try:
            knobs[key] = json.loads(value)
        except json.JSONDecodeError:
            knobs[key] = value
    return QUERIES[name].bound(knobs)


def measure(name: str, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell, in a process of its own."""
    command = [sys.executable, __file__, "--child", "--only", name, "--rows", str(rows)]
    for key in ("features", "classes", "budget", "most", "limit", "memory"):
        command += [f"--{key}", str(getattr(options, key))]
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
    """Build the table, pick, and say what it took."""
    name, rows = options.only[0], options.rows[0]
    budget = min(math.ceil(options.budget * rows), options.most)
    slate = drawn(name, rows, budget, options)
    held = peak()
    limit(options.limit, options.memory)
    start, worked = time.perf_counter(), time.process_time()
    try:
        with torch.no_grad():
            ask(strategy_of(name).query, slate)
    except UserError as error:
        print(json.dumps({"refused": str(error)}))
        return
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        print(json.dumps({"over_memory": options.memory}))
        return
    seconds, cpu = time.perf_counter() - start, time.process_time() - worked
    said = {"budget": budget, "seconds": seconds, "cpu": cpu, "mb": peak() - held, "table_mb": held}
    print(json.dumps(said))


def drawn(name: str, rows: int, budget: int, options: argparse.Namespace) -> Slate:
    """A slate of drawn rows, as many labelled ones as are to be picked, and a source if it is read."""
    strategy = strategy_of(name)
    candidates, labelled, source = (
        Rows(
            torch.arange(count),
            torch.zeros(count, dtype=torch.long),
            columns(needs, count, part, options, options.disk if part == 0 else None),
        )
        for part, (count, needs) in enumerate(
            ((rows, strategy.needs), (budget, strategy.needs), (SOURCE, strategy.source))
        )
    )
    head = torch.randn(options.classes, options.features, generator=fork(0, "head"))
    return Slate(
        candidates,
        labelled,
        budget,
        fork(0, "query"),
        source if strategy.source else None,
        head if strategy.head else None,
    )


def columns(
    needs: Sequence[str], count: int, part: int, options: argparse.Namespace, disk: Path | None
) -> dict[str, Tensor | Deferred]:
    """Columns of drawn rows, wide ones from the disk if they are there."""
    wide = {} if disk is None else pick(stored(disk), needs)
    narrow = [name for name in needs if name not in wide]
    filled = dict[str, Tensor]()
    for start, some in enumerate(drawn_columns(narrow, count, part, options) if narrow else ()):
        for key, column in some.items():
            whole = filled.setdefault(key, column.new_empty(count, *column.shape[1:]))
            whole[start * AT_ONCE : start * AT_ONCE + len(column)] = column
    return {**filled, **wide}


T = TypeVar("T")


def pick(columns: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    """Those columns of some that are named."""
    return {name: column for name, column in columns.items() if name in names}


def drawn_columns(
    needs: Sequence[str], count: int, part: int, options: argparse.Namespace
) -> Iterator[dict[str, Tensor]]:
    """Columns of some rows at a time: around one centre per class, with noise as wide as these are apart."""
    centres = torch.randn(options.classes, options.features, generator=fork(0, "centres"))
    for start in range(0, count, AT_ONCE):
        generator, some = fork(0, "rows", part, start), min(AT_ONCE, count - start)
        kind = torch.randint(0, options.classes, (some,), generator=generator)
        features = torch.randn(some, options.features, generator=generator).add_(centres[kind]).relu_()
        z = torch.randn(some, options.classes, generator=generator)
        z[torch.arange(some), kind] += 3
        told = {
            "domain": torch.rand(some, generator=generator),
            "critic": torch.randn(some, generator=generator),
        }
        if "committee" in needs:
            doubt = torch.randn(some, MEMBERS, options.classes, generator=generator)
            told["committee"] = doubt.add_(z[:, None]).softmax(2)
        yield columns_of(z, features, needs, told)


def limit(seconds: int, gigabytes: float) -> None:
    """End this process after so many more seconds on the CPU, refuse it more memory than so much more.

    The latter where the system tells how much it has.
    """
    last = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (last, last + 1))
    told = Path("/proc/self/statm")
    if told.exists():
        has = int(told.read_text(encoding="utf-8").split()[5]) * resource.getpagesize()
        most = has + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def peak() -> float:
    """The most memory that this process has held, in megabytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def shown(cell: dict[str, Any]) -> str:
    """A cell, for a table."""
    if "over" in cell:
        return f"over {cell['over']} s"
    if "over_memory" in cell:
        return f"over {cell['over_memory']:g} GB"
    if "refused" in cell:
        return f"refused: {cell['refused']}"
    if "failed" in cell:
        return f"failed ({cell['failed']})"
    return f"{cell['seconds']:.3g} s ({cell['cpu']:.3g}), {cell['mb']:.0f} MB"


def table(cells: Sequence[dict[str, Any]], sizes: Sequence[int]) -> str:
    """Queries down, sizes across, and between two sizes the power of n with which seconds grow."""
    heads = [f"n = {size}" for size in sizes] + [f"{a} → {b}" for a, b in pairwise(sizes)]
    lines = ["| query | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name in dict.fromkeys(cell["query"] for cell in cells):
        row = [cell for cell in cells if cell["query"] == name]
        texts = [shown(cell).split(":")[0] for cell in row]
        texts += [growth(a, b) for a, b in pairwise(row)]
        lines.append(f"| `{name}` | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def growth(small: dict[str, Any], large: dict[str, Any]) -> str:
    """The slope between two cells, on logarithmic scales."""
    if "seconds" not in small or "seconds" not in large or small["rows"] == large["rows"]:
        return "–"
    slope = math.log(large["seconds"] / small["seconds"]) / math.log(large["rows"] / small["rows"])
    return f"n^{slope:.2f}"


if __name__ == "__main__":
    main()
