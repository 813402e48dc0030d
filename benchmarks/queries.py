"""Scale of queries: seconds and memory of one round of picking, as the pool grows.

    python benchmarks/queries.py --rows 10000 100000 1000000 [--only NAME ...] [--features 256] [--classes 65]
        [--budget 0.01 --most 5000] [--limit 600] [--out FILE]

Rows are images: columns are drawn, and only those that a query reads. Each cell is a fresh process, so that
its peak of memory is its own; the peak is counted above what the table itself holds. Prints a Markdown table
with the growth between sizes, n to the power of; one over the limit of time is killed, and said to be.
"""

import argparse
import json
import math
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ducats.criteria import columns_of
from ducats.errors import UserError
from ducats.queries import QUERIES
from ducats.randomness import fork
from ducats.rows import Rows, Slate, ask

IMAGES = [name for name, strategy in QUERIES.items() if not strategy.of_pixels]
MEMBERS = 5  # of a committee
SOURCE = 10_000  # images of the source, where a query reads them
AT_ONCE = 1000  # rows that are drawn at a time, so that no peak of drawing hides one of picking


def main() -> None:
    """Measure every cell, print a table, write JSON if asked."""
    options = parse()
    if options.child:
        child(options)
        return
    cells = []
    for name in options.only or IMAGES:
        for rows in options.rows:
            cells.append({"query": name, "rows": rows, **measure(name, rows, options)})
            print(f"{name} of {rows}: {shown(cells[-1])}", file=sys.stderr, flush=True)
    print(table(cells, options.rows))
    if options.out:
        about = {
            "machine": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **{k: getattr(options, k) for k in ("features", "classes", "budget", "most", "limit")},
        }
        options.out.write_text(json.dumps({"about": about, "cells": cells}, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", choices=IMAGES, help="these queries; else all that know images")
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=65)
    parser.add_argument("--budget", type=float, default=0.01, help="share of the rows that is picked")
    parser.add_argument("--most", type=int, default=5000, help="picks")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a cell")
    parser.add_argument("--out", type=Path, help="write JSON there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(name: str, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell, in a process of its own."""
    command = [sys.executable, __file__, "--child", "--only", name, "--rows", str(rows)]
    for key in ("features", "classes", "budget", "most"):
        command += [f"--{key}", str(getattr(options, key))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the table is built, and the clock starts
        try:
            process.wait(options.limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"over": options.limit}
        said = process.stdout.read()
    if process.returncode:
        return {"failed": process.returncode}
    found: dict[str, Any] = json.loads(said)
    return found


def child(options: argparse.Namespace) -> None:
    """Build the table, say so, pick, and say what it took."""
    name, rows = options.only[0], options.rows[0]
    budget = min(math.ceil(options.budget * rows), options.most)
    slate = drawn(name, rows, budget, options)
    held = peak()
    print("built", flush=True)
    start = time.perf_counter()
    try:
        with torch.no_grad():
            ask(QUERIES[name].query, slate)
    except UserError as error:
        print(json.dumps({"refused": str(error)}))
        return
    seconds = time.perf_counter() - start
    print(json.dumps({"budget": budget, "seconds": seconds, "mb": peak() - held, "table_mb": held}))


def drawn(name: str, rows: int, budget: int, options: argparse.Namespace) -> Slate:
    """A slate of drawn rows, as many labelled ones as are to be picked, and a source if it is read."""
    strategy = QUERIES[name]
    candidates, labelled, source = (
        Rows(torch.arange(count), torch.zeros(count, dtype=torch.long), columns(needs, count, part, options))
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


def columns(needs: Sequence[str], count: int, part: int, options: argparse.Namespace) -> dict[str, Tensor]:
    """Columns of rows that lie around one centre per class, with noise as wide as the centres are apart."""
    filled: dict[str, Tensor] = {}
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
        for key, column in columns_of(z, features, needs, told).items():
            whole = filled.setdefault(key, column.new_empty(count, *column.shape[1:]))
            whole[start : start + some] = column
    return filled


def peak() -> float:
    """The most memory that this process has held, in megabytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def shown(cell: dict[str, Any]) -> str:
    """A cell, for a table."""
    if "over" in cell:
        return f"over {cell['over']:g} s"
    if "refused" in cell:
        return f"refused: {cell['refused']}"
    if "failed" in cell:
        return f"failed ({cell['failed']})"
    return f"{cell['seconds']:.3g} s, {cell['mb']:.0f} MB"


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
