"""Coverage and width of the audit's interval for the mean IoU, beside other methods, on synthetic runs.

    python benchmarks/iou_coverage.py [--runs 60] [--seed 0] [--json FILE]

A pool has 200,000 pixels with skewed or even class frequencies. The accuracy rises over five stages, and rare
classes are harder. Audit pixels are drawn at random, a fifth of them before each stage. The intervals
of the five stages are to hold together with 95 %.

Compared, all with the same union bound over stages: the mean of the limits of all classes, at a level at
which these hold together; betting on all classes together; both, each with half of the error (the product);
the normal interval by the delta method, which is not valid for few labels. Widths are of the last stage. The
first two are from 20 runs per setting.
"""

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from ducats.evaluation import iou_intervals
from ducats.evaluation.audit import Interval, proportion_limits, stage_level
from ducats.evaluation.iou_intervals import (
    PixelSample,
    _betting_limit,
    class_iou_intervals,
    mean_iou_interval,
)
from ducats.utils.npz_columns import AnyArray

STAGES, PIXELS = 5, 200_000
SMALL_RUNS = 20  # runs for the parts of the product
LEVEL = stage_level(0, STAGES)
FREQUENCIES = {
    "5 even": np.full(5, 1 / 5),
    "11 skewed": np.geomspace(1, 0.02, 11),
    "19 skewed": np.geomspace(1, 0.005, 19),
}
ACCURACIES = {"0.7 to 0.85": np.linspace(0.7, 0.85, STAGES), "0.85 to 0.97": np.linspace(0.85, 0.97, STAGES)}


def make_pool(
    frequencies: AnyArray, accuracies: AnyArray, rng: np.random.Generator
) -> tuple[AnyArray, AnyArray]:
    """Return the label of each pixel, and the prediction at each stage."""
    frequencies, classes = frequencies / frequencies.sum(), len(frequencies)
    label = rng.choice(classes, PIXELS, p=frequencies)
    harder = 0.2 * rng.random(classes) * (frequencies < 0.05)
    confusion = np.sqrt(frequencies) * rng.random((classes, classes)) ** 2  # wrong classes, by label
    np.fill_diagonal(confusion, 0)
    confusion = (confusion / confusion.sum(1, keepdims=True)).cumsum(1)
    wrong = (rng.random(PIXELS)[:, None] > confusion[label]).sum(1).clip(max=classes - 1)
    difficulty = rng.random(PIXELS)
    accuracy = accuracies[:, None] - harder[label]
    return label, np.where(difficulty < accuracy, label, wrong)


def count(label: AnyArray, predicted: AnyArray, classes: int) -> AnyArray:
    """Return the confusion matrix."""
    return np.bincount(label * classes + predicted, minlength=classes**2).reshape(classes, classes)


def ious_of(confusion: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return hits and unions by class."""
    hits = np.diagonal(confusion)
    return hits, confusion.sum(0) + confusion.sum(1) - hits


def normal_interval(confusion: AnyArray) -> Interval:
    """Return the interval by the delta method over the classes that the sample has."""
    hits, unions = ious_of(confusion)
    seen, n = unions > 0, int(confusion.sum())
    iou, weight = (
        np.where(seen, hits / np.maximum(unions, 1), 0),
        n / np.maximum(unions, 1) * seen / seen.sum(),
    )
    influence = -(weight * iou)[:, None] - (weight * iou)[None]
    np.fill_diagonal(influence, weight * (1 - iou))
    deviation = np.sqrt((confusion * influence**2).sum()) / n
    mean = float(iou[seen].mean())
    half = float(-ndtri((1 - LEVEL) / 2) * deviation)
    return Interval(mean, max(mean - half, 0.0), min(mean + half, 1.0))


def intervals_of(sample: PixelSample, *, with_parts: bool) -> dict[str, Interval]:
    """Return the interval by each method."""
    found = {"both": mean_iou_interval(sample, level=LEVEL), "normal": normal_interval(sample.confusion)}
    if not with_parts:
        return found
    classes = len(sample.predicted)
    each = class_iou_intervals(sample, level=1 - (1 - LEVEL) / classes)
    low, high = (_betting_limit(sample, (1 - LEVEL) / 2, lower=lower) / classes for lower in (True, False))
    mean = [float(np.mean([getattr(one, end) for one in each])) for end in ("estimate", "low", "high")]
    return {**found, "class limits": Interval(*mean), "betting": Interval(mean[0], low, high)}


def measure(name: str, labels: int, path: str, runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Simulate one setting."""
    classes = len(FREQUENCIES[name])
    label, predicted = make_pool(FREQUENCIES[name], ACCURACIES[path], rng)
    pool = [count(label, one, classes) for one in predicted]
    truth = [float(np.mean(hits / unions)) for hits, unions in map(ious_of, pool)]
    covered: dict[str, list[bool]] = {}
    width: dict[str, list[float]] = {}
    for run in range(runs):
        drawn = rng.choice(PIXELS, labels, replace=False)
        holds: dict[str, bool] = {}
        for stage in range(STAGES):
            part = drawn[: labels * (stage + 1) // STAGES]
            counts = pool[stage].sum(0)
            sample = PixelSample(
                count(label[part], predicted[stage][part], classes),
                counts,
                0.9 * counts,  # a model that knows nothing about classes: only the estimate depends on it
                counts.astype(float),
                0,
                np.zeros((classes, classes), np.int64),
            )
            for method, one in intervals_of(sample, with_parts=run < SMALL_RUNS).items():
                held = one.low - 1e-9 <= truth[stage] <= one.high + 1e-9
                holds[method] = held and holds.get(method, True)
                if stage == STAGES - 1:
                    width.setdefault(method, []).append(one.high - one.low)
        for method, held in holds.items():
            covered.setdefault(method, []).append(held)
    return {
        "classes": name,
        "labels": labels,
        "accuracy": path,
        "mean_iou": round(truth[-1], 4),
        "runs": runs,
        "coverage": {method: round(float(np.mean(held)), 4) for method, held in covered.items()},
        "width": {method: round(float(np.mean(values)), 4) for method, values in width.items()},
    }


def main() -> None:
    """Simulate all settings, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.process_time()
    iou_intervals.__dict__["proportion_limits"] = cache(proportion_limits)  # many runs have the same counts
    settings = [(name, n, path) for name in FREQUENCIES for n in (100, 500, 2000) for path in ACCURACIES]
    rows = []
    for index, (name, labels, path) in enumerate(settings):
        rows.append(measure(name, labels, path, options.runs, np.random.default_rng([options.seed, index])))
        print(json.dumps(rows[-1]), flush=True)
    seconds = round(time.process_time() - start)
    print(f"{seconds} s of CPU time; lowest coverage", min(row["coverage"]["both"] for row in rows))
    if options.json:
        command = f"python benchmarks/iou_coverage.py --runs {options.runs} --seed {options.seed}"
        head = json.dumps({"command": command, "cpu_seconds": seconds})[1:-1]
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        options.json.write_text(f'{{\n {head},\n "rows": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
