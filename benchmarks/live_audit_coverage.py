"""Coverage and width of the accuracy that live labelling shows, in synthetic sessions with known truth.

    python benchmarks/live_audit_coverage.py --out live-audit-coverage.json

In a session, each image of the pool has its own difficulty. After each answer there is another model, which
is better than the one before and makes related errors. The query takes the most difficult of a few images;
one of ten questions is drawn at random, for the audit. The figures are made as in `LiveAudit`: when the
audit has certain sizes, for the model at that time. For comparison, at the same times: a confidence
sequence from a mixture of betas (Howard et al. 2021), which holds for one model only, and the limits of
Clopper and Pearson.
"""

import argparse
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaln
from scipy.stats import beta

from ducats.evaluation.audit import proportion_limits, stage_level

EVERY, FIRST_QUESTION = 10, 20
GROWTHS = {"1.5": 1.5, "2": 2.0}
FIRST_LOOK = 10
CANDIDATES = 20
RISES = {"0.5 to 0.8": (0.5, 0.8), "0.6 to 0.9": (0.6, 0.9), "0.8 to 0.98": (0.8, 0.98)}


@cache
def mixture_limits(successes: int, n: int) -> tuple[float, float]:
    """Return where the beta-binomial mixture martingale, with the uniform prior, is below 20."""
    grid = np.linspace(0, 1, 2001)[1:-1]
    log_mixture = betaln(successes + 1, n - successes + 1)
    log_p = successes * np.log(grid) + (n - successes) * np.log1p(-grid)
    kept = grid[log_mixture - log_p < np.log(20)]
    return (
        0.0 if kept[0] == grid[0] else float(kept[0]),
        1.0 if kept[-1] == grid[-1] else float(kept[-1]),
    )


@cache
def plain_limits(successes: int, n: int) -> tuple[float, float]:
    """Return the limits of Clopper and Pearson."""
    low = beta.ppf(0.025, successes, n - successes + 1) if successes else 0.0
    high = beta.ppf(0.975, successes + 1, n - successes) if successes < n else 1.0
    return float(low), float(high)


limits = cache(proportion_limits)


def session(
    random: np.random.Generator, size: int, rise: tuple[float, float], n_answers: int
) -> dict[str, Any]:
    """Return the looks of a session: number of audit labels, intervals and truth, for each scheme."""
    difficulty = random.random(size)
    wobble = random.random(size)  # keeps the order of difficulties from being that of the errors
    order = random.permutation(size)
    is_trained_on, is_audit = np.zeros(size, bool), np.zeros(size, bool)
    looks: dict[str, list[dict[str, Any]]] = {name: [] for name in GROWTHS}
    position = 0
    for answer in range(n_answers):
        if answer >= FIRST_QUESTION and (answer - FIRST_QUESTION) % EVERY == 0:
            while is_trained_on[order[position]] or is_audit[order[position]]:
                position += 1
            is_audit[order[position]] = True
        else:
            candidates = random.choice(np.flatnonzero(~is_trained_on), CANDIDATES, replace=False)
            pick = candidates[difficulty[candidates].argmax()]
            is_trained_on[pick], is_audit[pick] = True, False
        n = int(is_audit.sum())
        is_due = [n >= round(FIRST_LOOK * growth ** len(looks[name])) for name, growth in GROWTHS.items()]
        if not any(is_due):
            continue
        accuracy = rise[1] - (rise[1] - rise[0]) * np.exp(-3 * answer / n_answers)
        is_correct = 0.5 * difficulty + 0.5 * wobble < np.quantile(0.5 * difficulty + 0.5 * wobble, accuracy)
        other = ~is_trained_on
        successes, truth = int(is_correct[is_audit].sum()), float(is_correct[other].mean())
        for name, due in zip(GROWTHS, is_due, strict=True):
            if due:
                level = stage_level(len(looks[name]))
                shown = {
                    "preset": limits(successes, n, int(other.sum()), level=level),
                    "mixture": mixture_limits(successes, n),
                    "plain": plain_limits(successes, n),
                }
                looks[name].append({"n": n, "truth": truth, "limits": shown})
    return looks


def main() -> None:
    """Simulate all settings and print a table."""
    parser = argparse.ArgumentParser(description="Coverage of the accuracy in live labelling")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--answers", type=int, default=400)
    parser.add_argument("--pool", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for rise_name, rise in RISES.items():
        random = np.random.default_rng(0)
        found = [session(random, arguments.pool, rise, arguments.answers) for _ in range(arguments.sessions)]
        for growth in GROWTHS:
            row: dict[str, Any] = {"accuracy": rise_name, "growth": growth}
            for scheme in ("preset", "mixture", "plain"):
                held = [
                    all(
                        look["limits"][scheme][0] <= look["truth"] <= look["limits"][scheme][1]
                        for look in one[growth]
                    )
                    for one in found
                ]
                row[f"{scheme} coverage"] = round(100 * statistics.mean(held), 2)
                last = [one[growth][-1]["limits"][scheme] for one in found]
                row[f"{scheme} width"] = round(100 * statistics.mean(high - low for low, high in last), 1)
            row["looks"] = statistics.mean(len(one[growth]) for one in found)
            row["labels"] = statistics.mean(one[growth][-1]["n"] for one in found)
            rows.append(row)
            print(row, flush=True)
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"options": vars(arguments) | {"out": None}, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
