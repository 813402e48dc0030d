"""Coverage and width of the audit intervals, beside other methods, on synthetic runs.

    python benchmarks/audit_coverage.py [--runs 10000] [--seed 0] [--json FILE]

A run has five rounds. Its pool has images of varying difficulty; the model's accuracy rises over the rounds.
In each round a query takes the 0.5 % least confident images, and audit images are drawn at random from the
pool. The intervals of the six stages, the first without labels, are to hold together with 95 %. Runs share
ten pools: the guarantee is for any pool, over the audit draws.

Compared, all with the same union bound: Clopper-Pearson; its finite version; Blaker's test for the
hypergeometric distribution (the product); betting on the prediction-powered residual (Waudby-Smith and
Ramdas 2024); Fisher's combination over two strata by confidence; the normal interval of PPI++, which is not
valid for few labels. Widths are of the last stage, relative to Clopper-Pearson. Betting, strata, gains and
the errors of the estimate are from 40 runs per setting.
"""

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, gammainccinv, logit, ndtri

from ducats.evaluation.audit import (
    _fewest,
    _upper_tail,
    accuracy_interval,
    gain_interval,
    proportion_limits,
    stage_level,
)

_Array = NDArray[Any]
ROUNDS, STAGES, POOLS = 5, 6, 10
SMALL_RUNS = 40  # runs for the slow methods and for gains
LEVEL = stage_level(0, STAGES)
ERROR = 1 - LEVEL
ACCURACIES = {
    f"{low} to {high}": np.linspace(low, high, STAGES) for low, high in ((0.5, 0.7), (0.5, 0.9), (0.9, 0.99))
}
SIZES = [(200, 4), (200, 20), (2000, 4), (2000, 20), (2000, 100), (20000, 4), (20000, 20), (20000, 100)]
limits = cache(lambda x, n, size: proportion_limits(x, n, size, level=LEVEL))


@cache
def finite_clopper_pearson(x: int, n: int, size: int) -> tuple[float, float]:
    """Return the limits by inversion of one-sided hypergeometric tests."""
    low, high = (int(_fewest(k, n, np.array([size]), np.array([ERROR / 2]))[0]) for k in (x, n - x))
    return low / size, 1 - high / size


def make_pool(size: int, accuracies: _Array, kind: str, rng: np.random.Generator) -> tuple[_Array, _Array]:
    """Return, for each stage and image, whether the model is right, and its confidence."""
    difficulty, luck = rng.normal(size=size), rng.random(size)
    correct, confidence = [], []
    for accuracy in accuracies:
        low, high = -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            below = expit(middle + 2.5 * difficulty).mean() < accuracy
            low, high = (middle, high) if below else (low, middle)
        p = np.clip(expit(low + 2.5 * difficulty), 1e-9, 1 - 1e-9)
        correct.append(np.where(rng.random(size) < 0.3, rng.random(size), luck) < p)
        if kind == "overconfident":
            p = expit(2 * logit(p) + 1)
        confidence.append(rng.permutation(p) if kind == "uninformative" else p)
    return np.array(correct), np.array(confidence)


def betting(y: _Array, g: _Array, g_mean: float, size: int) -> float:
    """Width of the hedged betting interval of y - g, without replacement, with predictable plug-in bets."""
    z, n, i = (y - g + 1) / 2, len(y), np.arange(len(y))
    grid = np.linspace(0, 1, 1001)[:, None]
    mean = np.clip((size * grid - (z.cumsum() - z)) / (size - i), 1e-9, 1 - 1e-9)
    running = (0.5 + z.cumsum()) / (i + 2)
    variance = np.r_[0.25, ((0.25 + ((z - running) ** 2).cumsum()) / (i + 2))[:-1]]
    bet = np.sqrt(2 * np.log(2 / ERROR) / (variance * n))
    up = np.log1p(np.minimum(bet, 0.75 / mean) * (z - mean)).cumsum(1)
    down = np.log1p(-np.minimum(bet, 0.75 / (1 - mean)) * (z - mean)).cumsum(1)
    kept = grid[np.maximum(up, down).max(1) - np.log(2) < np.log(1 / ERROR), 0] * 2 - 1 + g_mean
    return float(np.clip(kept.max(), 0, 1) - np.clip(kept.min(), 0, 1)) if len(kept) else 0.0


def fewest_stratified(x: _Array, n: _Array, sizes: _Array) -> float:
    """Lower limit of the successes of two strata: Fisher's combination, minimised by Lagrange's dual."""
    threshold, tables = float(gammainccinv(2, ERROR / 2)), []
    for k, m, size in zip(x.tolist(), n.tolist(), sizes.tolist(), strict=True):
        top = size - (m - k)
        ends = np.unique(np.linspace(k, top, min(300, top - k + 1)).astype(int))
        tail = np.clip(_upper_tail(k, m, ends, np.full(len(ends), size)), 1e-300, 1)
        tables.append((np.r_[k, ends[:-1] + 1], -np.log(tail)))
    bounds = [
        sum((count + price * score).min() for count, score in tables) - price * threshold
        for price in np.geomspace(1e-3, 10 * sizes.sum(), 120)
    ]
    return float(max(*bounds, x.sum()))


def stratified(y: _Array, g: _Array, pool_g: _Array) -> float:
    """Width with two strata: the least confident fifth, and the others."""
    cut = np.quantile(pool_g, 0.2)
    sizes, n, x = (
        np.array([(v <= cut).sum(), (v > cut).sum()]) for v in (pool_g, g, np.where(y == 1, g, np.nan))
    )
    low, missed = fewest_stratified(x, n, sizes), fewest_stratified(n - x, n, sizes)
    return float(1 - (low + missed) / sizes.sum())


def normal_limits(y: _Array, g: _Array, live: _Array, g_mean: float, size: int) -> tuple[_Array, _Array]:
    """Limits of PPI++ with a plug-in weight, for many samples at once."""
    n = np.maximum(live.sum(1), 1)
    y_mean, g_sample = (y * live).sum(1) / n, (g * live).sum(1) / n
    dy, dg = (y - y_mean[:, None]) * live, (g - g_sample[:, None]) * live
    weight = np.clip((dy * dg).sum(1) / np.maximum((dg**2).sum(1), 1e-12), 0, 1)
    estimate = y_mean + weight * (g_mean - g_sample)
    variance = ((dy - weight[:, None] * dg) ** 2).sum(1) / np.maximum(n - 1, 1)
    half = -ndtri(ERROR / 2) * np.sqrt(variance / n * (1 - n / size))
    return estimate - half, estimate + half


def measure(
    size: int, per_round: int, path: str, kind: str, runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Simulate one setting."""
    hold = {name: np.ones(0, bool) for name in ("clopper_pearson", "finite", "blaker", "normal", "gain")}
    width: dict[str, list[float]] = {name: [] for name in (*hold, "betting", "stratified", "same_runs")}
    errors: list[tuple[float, float]] = []
    for _ in range(POOLS):
        correct, confidence = make_pool(size, ACCURACIES[path], kind, rng)
        audits = np.array([rng.choice(size, per_round * ROUNDS, replace=False) for _ in range(runs // POOLS)])
        trained_on = np.zeros(size, bool)
        covered = {name: np.ones(len(audits), bool) for name in hold}
        few = range(SMALL_RUNS // POOLS)
        for stage in range(1, STAGES):
            candidates = np.flatnonzero(~trained_on)
            order = np.argsort(confidence[stage - 1][candidates], kind="stable")
            trained_on[candidates[order[: max(size // 200, 1)]]] = True
            rest = ~trained_on
            truth, left = correct[stage][rest].mean(), int(rest.sum())
            g_mean = float(confidence[stage][rest].mean())
            drawn = audits[:, : per_round * stage]
            live = rest[drawn]
            y, g = correct[stage][drawn], confidence[stage][drawn]
            n, x = live.sum(1), (y & live).sum(1)
            pairs, inverse = np.unique(np.stack([x, n], 1), axis=0, return_inverse=True)
            of = {
                "clopper_pearson": (
                    np.where(x > 0, betaincinv(np.maximum(x, 1), n - x + 1, ERROR / 2), 0.0),
                    np.where(x < n, betaincinv(x + 1, np.maximum(n - x, 1), 1 - ERROR / 2), 1.0),
                ),
                "normal": normal_limits(y, g, live, g_mean, left),
            }
            for name, function in (("blaker", limits), ("finite", finite_clopper_pearson)):
                table = np.array([function(int(a), int(b), left) for a, b in pairs])
                of[name] = table[inverse.reshape(-1), 0], table[inverse.reshape(-1), 1]
            for name, (low, high) in of.items():
                covered[name] &= (low - 1e-12 <= truth) & (truth <= high + 1e-12)
                if stage == ROUNDS:
                    width[name] += (np.clip(high, 0, 1) - np.clip(low, 0, 1)).tolist()
            gain_truth = truth - correct[stage - 1][rest].mean()
            for run in few:
                kept = drawn[run][live[run]]
                gain = gain_interval(correct[stage - 1][kept], correct[stage][kept], size=left, level=LEVEL)
                covered["gain"][run] &= gain.low - 1e-12 <= gain_truth <= gain.high + 1e-12
                if stage == ROUNDS:
                    y_run, g_run, pool_g = (
                        correct[stage][kept] * 1.0,
                        confidence[stage][kept],
                        confidence[stage][rest],
                    )
                    width["same_runs"].append(
                        float(np.diff([of["clopper_pearson"][k][run] for k in (0, 1)])[0])
                    )
                    width["gain"].append(gain.high - gain.low)
                    width["betting"].append(betting(y_run, g_run, g_mean, left))
                    width["stratified"].append(stratified(y_run, g_run, pool_g))
                    estimate = accuracy_interval(
                        y_run == 1, g_run, pool_size=left, pool_confidence=g_mean, level=LEVEL
                    ).estimate
                    errors.append((estimate - truth, y_run.mean() - truth))
        covered["gain"] = covered["gain"][: len(few)]
        hold = {name: np.r_[hold[name], covered[name]] for name in hold}
    plain, same = (float(np.mean(width[name])) for name in ("clopper_pearson", "same_runs"))
    rms = np.sqrt(np.mean(np.square(errors), axis=0))
    return {
        "pool": size,
        "labels": per_round * ROUNDS,
        "accuracy": path,
        "confidence": kind,
        "runs": len(hold["blaker"]),
        "coverage": {name: round(float(values.mean()), 4) for name, values in hold.items()},
        "clopper_pearson_width": round(plain, 4),
        "gain_width": round(float(np.mean(width["gain"])), 4),
        "relative_width": {
            name: round(
                float(np.mean(width[name])) / (same if name in ("betting", "stratified") else plain), 3
            )
            for name in ("finite", "blaker", "betting", "stratified", "normal")
        },
        "rms_error": {"estimate": round(float(rms[0]), 4), "mean": round(float(rms[1]), 4)},
    }


def main() -> None:
    """Simulate all settings, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.process_time()
    rows: list[dict[str, Any]] = []
    for index, (size, per_round) in enumerate(SIZES):
        for path in ACCURACIES:
            for kind in ("calibrated", "overconfident", "uninformative"):
                rng = np.random.default_rng([options.seed, index, len(rows)])
                row = measure(size, per_round, path, kind, options.runs, rng)
                rows.append(row)
                print(json.dumps(row), flush=True)
    seconds = round(time.process_time() - start)
    print(f"{seconds} s of CPU time; lowest coverage of Blaker", min(r["coverage"]["blaker"] for r in rows))
    if options.json:
        command = f"python benchmarks/audit_coverage.py --runs {options.runs} --seed {options.seed}"
        head = json.dumps({"command": command, "cpu_seconds": seconds})[1:-1]
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        options.json.write_text(f'{{\n {head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
