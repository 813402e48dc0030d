"""Time of labelling with a model that learns from each answer, beside scikit-activeml.

    python benchmarks/live_refit.py [--samples 1000 10000] [--features 2048] [--classes 65] [--threads 2]
        [--answers 10] [--skactiveml PYTHON] [--json FILE]
    python benchmarks/live_refit.py --digits [--json FILE]

Features are random clusters, one per class; the source is a fifth as large as the target. Measures `fit`, the
refit after one answer (`teach`), a refit that also renews the pseudo-labels (once per 1 % of labels), and a
question. PYTHON is an interpreter with scikit-activeml, which is not a dependency. There, the source are the
initial labels, a logistic regression is fitted again after each answer, and the questions come from margin
sampling, CoreSet and BADGE. Prints the medians of wall time and CPU time; on a machine that others use, only
CPU time means something.

With --digits, prints the accuracy on the digits of the demo, whose pixels are the features, with 65 labels,
and the number of labels at which it first reaches 90 %: refits after each answer or after 13, our query or
random order, with and without the source, 3 seeds.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCE_FRACTION = 0.2  # size of the source, as a fraction of the target
MAX_BADGE_GB = 2.0  # its gradients, samples x classes x features in float64, are in memory at once
NOISE = 6.0  # standard deviation around the centres; more makes the classes overlap


def main() -> None:
    """Measure all sizes, print a table, and write JSON if requested."""
    options = parse()
    if options.digits:
        measure_digits(options)
        return
    measure = measure_skactiveml if options.child else measure_ducats
    rows = [row for samples in options.samples for row in measure(samples, options)]
    if options.child:
        print(json.dumps(rows))
        return
    print("| samples | | wall s | CPU s |\n| ---: | --- | ---: | ---: |")
    print_rows(rows)
    if options.skactiveml:
        command = [options.skactiveml, __file__, "--child", *sys.argv[1:]]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        others = json.loads(output.splitlines()[-1])
        print_rows(others)
        rows += others
    if options.json:
        about = {
            "command": " ".join(["python", "benchmarks/live_refit.py", *sys.argv[1:]]),
            "machine": platform.processor() or platform.machine(),
            **{name: getattr(options, name) for name in ("features", "classes", "threads", "answers")},
        }
        Path(options.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows of a Markdown table."""
    for row in rows:
        print(f"| {row['samples']:,} | {row['what']} | {row['wall']:.2f} | {row['cpu']:.2f} |", flush=True)


def parse() -> argparse.Namespace:
    """Parse the command line, and limit the threads before numerical libraries are used."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=65)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answers", type=int, default=10)
    parser.add_argument("--skactiveml", metavar="PYTHON")
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args()
    expected = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if any(os.environ.get(name) != value for name, value in expected.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **expected})
    return options


def clusters(samples: int, options: argparse.Namespace) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features and labels."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(options.classes, options.features))
    labels = generator.integers(options.classes, size=samples)
    labels[: options.classes] = np.arange(options.classes)
    noise = NOISE * generator.normal(size=(samples, options.features))
    return (centres[labels] + noise).astype(np.float32), labels


class Timer:
    """Wall time and CPU time of calls, by name."""

    def __init__(self, samples: int) -> None:
        self.samples, self.times = samples, dict[str, list[tuple[float, float]]]()

    def __call__(self, what: str, function: Callable[[], Any]) -> Any:
        """Call a function and record its times."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = function()
        self.times.setdefault(what, []).append((time.perf_counter() - wall, time.process_time() - cpu))
        return result

    def rows(self) -> list[dict[str, Any]]:
        """Return the medians."""
        return [
            {
                "samples": self.samples,
                "what": what,
                "wall": round(statistics.median(wall for wall, _ in times), 3),
                "cpu": round(statistics.median(cpu for _, cpu in times), 3),
                "n": len(times),
            }
            for what, times in self.times.items()
        ]


def measure_ducats(samples: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure fit, refits and questions of `AdaptiveClassifier`."""
    import ducats

    n_source = max(options.classes, int(SOURCE_FRACTION * samples))
    X, y = clusters(n_source + samples, options)
    target, truth, timed = X[n_source:], y[n_source:], Timer(samples)
    model = ducats.AdaptiveClassifier(device="cpu")
    timed("ducats: fit, 500 steps", lambda: model.fit(X[:n_source], y[:n_source], target))
    for _ in range(options.answers):
        pick = timed("ducats: question", lambda: model.query(1))
        timed("ducats: refit after an answer, 50 steps", lambda: model.teach(pick, truth[pick]))  # noqa: B023
    settings = ("query.params.subsample=2000",)
    model.set_params(settings=settings).fit(X[:n_source], y[:n_source], target)
    for _ in range(options.answers if len(target) > 2000 else 0):
        pick = timed("ducats: question, subsample=2000", lambda: model.query(1))
        model.teach(pick, truth[pick])
    many = np.arange(max(options.classes, -(-len(target) // 100)) + 1)
    timed(
        "ducats: refit with new pseudo-labels (once per 1 % of labels)",
        lambda: model.teach(many, truth[many]),
    )
    return timed.rows()


def measure_digits(options: argparse.Namespace) -> None:
    """Measure the accuracy while labels arrive; print a table, and write JSON if requested."""
    import ducats

    data, rows = ducats.digits(), []
    assert data.test is not None
    assert data.ground_truth is not None
    X, target, test = (x.pixels[:].flatten(1) for x in (data.source.images, data.pool, data.test.images))
    print("| source | query | labels per refit | accuracy % | labels to 90 % |")
    print("| --- | --- | ---: | ---: | --- |")
    for has_source, query, per_refit in itertools.product((True, False), ("coverage", "random"), (1, 13)):
        accuracies, reached = [], []
        for seed in range(3):
            strategy = None if query == "coverage" else query
            model = ducats.AdaptiveClassifier(query_strategy=strategy, random_state=seed, device="cpu")
            model.fit(X if has_source else None, data.source.labels if has_source else None, target)
            curve = {}
            while model.n_labels_ < 65:
                picks = model.query(per_refit)
                model.teach(picks, data.ground_truth[picks])
                if len(model.classes_) > 1:
                    curve[model.n_labels_] = 100 * model.score(test, data.test.labels)
            accuracies.append(curve[65])
            reached.append(next((labels for labels, accuracy in curve.items() if accuracy >= 90), None))
        mean, deviation = statistics.mean(accuracies), statistics.stdev(accuracies)
        counts = ", ".join("–" if count is None else str(count) for count in reached)
        cells = ("yes" if has_source else "no", query, per_refit, f"{mean:.1f} ± {deviation:.1f}", counts)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        names = ("source", "query", "labels_per_refit", "accuracies", "labels_to_90")
        rows.append(dict(zip(names, (has_source, query, per_refit, accuracies, reached), strict=True)))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


def measure_skactiveml(samples: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure fit, refits and questions of scikit-activeml."""
    from skactiveml.classifier import SklearnClassifier
    from skactiveml.pool import Badge, CoreSet, UncertaintySampling
    from sklearn.linear_model import LogisticRegression

    n_source, timed = max(options.classes, int(SOURCE_FRACTION * samples)), Timer(samples)
    X, truth = clusters(n_source + samples, options)
    y = np.full(len(X), np.nan)
    y[:n_source] = truth[:n_source]
    model = SklearnClassifier(LogisticRegression(max_iter=200), classes=range(options.classes))
    timed("scikit-activeml: fit (logistic regression)", lambda: model.fit(X, y))
    strategies = {
        "UncertaintySampling": UncertaintySampling(method="margin_sampling", random_state=0),
        "CoreSet": CoreSet(random_state=0),
    }
    if 8 * samples * options.classes * options.features <= MAX_BADGE_GB * 2**30:
        strategies["Badge"] = Badge(random_state=0)
    for number in range(options.answers):
        for name, strategy in strategies.items():
            if name != "UncertaintySampling" and number >= 3:  # slow
                continue
            known = {} if name == "CoreSet" else {"clf": model, "fit_clf": False}
            pick = timed(f"scikit-activeml: question, {name}", lambda: strategy.query(X, y, **known))  # noqa: B023
        y[pick] = truth[pick]
        timed("scikit-activeml: refit after an answer", lambda: model.fit(X, y))
    return timed.rows()


if __name__ == "__main__":
    main()
