"""Label propagation: time of the neighbour search and of the solution, and peak memory.

    python benchmarks/label_propagation.py [--images 10000 100000] [--device cuda] [--threads 1] [--json FILE]

Features are noisy class centres with a power-law spectrum, and one image in a hundred has a label. Each size
is measured in a process of its own, whose peak memory (with a GPU, of the GPU) includes all data.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ducats.data.domain import UNLABELLED
from ducats.objectives.label_propagation import CLASSES_PER_CHUNK, neighbour_graph, solve
from ducats.utils.resources import peak_memory_bytes

ALPHA, NEIGHBOURS, PRIOR = 0.9, 10, 0.2


def measure(images: int, features: int, classes: int, device: str, threads: int) -> dict[str, Any]:
    """Propagate labels over a synthetic pool."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(images) % classes
    spectrum = torch.arange(1, features + 1) ** -0.5
    x = torch.randn(classes, features, generator=generator)[label]
    x = ((x + 2 * torch.randn(images, features, generator=generator)) * spectrum).to(device)
    p = F.softmax(torch.randn(images, classes, generator=generator), 1)
    known = torch.where(torch.arange(images) % 100 < 1, label, UNLABELLED)
    y = PRIOR * p
    y[known >= 0] = F.one_hot(known[known >= 0], classes).float()
    started = time.perf_counter()
    graph = neighbour_graph(x, NEIGHBOURS)
    searched = time.perf_counter()
    for part in y.split(CLASSES_PER_CHUNK, 1):
        solve(graph, np.ascontiguousarray(part), ALPHA)
    solved = time.perf_counter()
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else peak_memory_bytes() or 0
    return {
        "images": images,
        "neighbour search, s": round(searched - started, 2),
        "solution, s": round(solved - searched, 2),
        "edges an image": round(graph.nnz / images, 1),
        "peak memory, MB": round(memory / 1e6),
    }


def main() -> None:
    """Measure each size and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, default=65)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for images in options.images:
        arguments = (images, options.features, options.classes, options.device, options.threads)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append(pool.apply(measure, arguments))
        print(results[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
