"""Dirichlet maths: speed and accuracy of the stable formulas against the naive ones.

    python benchmarks/dirichlet.py [--json FILE]

Prints the time per call (best of several, one thread) and the fraction of the top 5 % by U_dis that each
float32 formula finds, compared with the ranking of the stable formula in float64.
"""

import json
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ducats import dirichlet


def naive_uncertainties(z: Tensor) -> tuple[Tensor, Tensor]:
    """Compute U_dis and U_data by the formulas of the paper, with the usual epsilon inside the logarithm."""
    alpha = z.exp()
    total = alpha.sum(1, keepdim=True)
    p = alpha / total
    data = (p * (torch.digamma(total + 1) - torch.digamma(alpha + 1))).sum(1)
    return -(p * (p + 1e-7).log()).sum(1) - data, data


def best_seconds(act: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of several calls."""
    act()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


def training_step(formula: Callable[[Tensor], tuple[Tensor, Tensor]], z: Tensor) -> Callable[[], object]:
    """Return a function that runs forward and backward of both uncertainties."""

    def step() -> None:
        leaf = z.clone().requires_grad_()
        first, second = formula(leaf)
        (first.mean() + 0.05 * second.mean()).backward()

    return step


def top_fraction_found(score: Tensor, reference: Tensor) -> float:
    """Return the fraction of the true top 5 % that is in the top 5 % by score."""
    count = len(reference) // 20
    return len(set(score.topk(count).indices.tolist()) & set(reference.topk(count).indices.tolist())) / count


def main() -> None:
    """Measure, print, and write JSON if requested."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for shape, repeats in (((32, 10), 200), ((100_000, 65), 3)):
        z = torch.randn(shape, generator=generator)
        with torch.no_grad():
            for name, formula in (("usual", naive_uncertainties), ("ours", dirichlet.uncertainties)):
                rows.append((f"score {shape}, {name}", best_seconds(partial(formula, z), repeats)))
    z = torch.randn(32, 10, generator=generator)
    rows.append(("train (32, 10), usual", best_seconds(training_step(naive_uncertainties, z), 200)))
    rows.append(("train (32, 10), ours", best_seconds(training_step(dirichlet.uncertainties, z), 200)))
    for name, value in rows:
        print(f"{name:34s} {1e3 * value:10.3f} ms")
    ranking = []
    for level in (2, 4, 6, 8, 10, 13):
        z = torch.randn(20_000, 65, generator=generator) + level * 2.302585 - 4.2
        reference = dirichlet.log_distribution_uncertainty(z.double())
        ours = top_fraction_found(dirichlet.log_distribution_uncertainty(z), reference)
        ranking.append((level, top_fraction_found(naive_uncertainties(z)[0], reference), ours))
        print(f"alpha0 about 1e{level:<2d}: top 5 % found, usual {ranking[-1][1]:.3f}, ours {ours:.3f}")
    if "--json" in sys.argv:
        result = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
        seconds_by_name = dict(rows)
        table = [dict(zip(("log10_alpha0", "usual", "ours"), line, strict=True)) for line in ranking]
        text = json.dumps(result | {"seconds": seconds_by_name, "top_5_percent_found": table}, indent=1)
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
