r"""Gain over random labels from the audit alone, against runs that select at random.

    python benchmarks/random_gain.py --seeds 20 --out gain.json -- -c data/digits --budget 150 --audit 75

All that follows ``--`` are options of ``ducats run``; the data must have a test set, which no part of the
estimate reads. Each seed is run twice, once with ``query.name=random``. The truth is the accuracy on the test
set, with the number of labels that the estimate is for, minus the mean of the random runs. Finished runs are
read from ``--runs``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from ducats.runfolder.run_folder import RunFolder


def main() -> None:
    """Run what is missing, and print estimate, truth, coverage and width."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/random-gain"), help="parent of the run folders"
    )
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    parser.add_argument("options", nargs="+", help="options of `ducats run`, after --")
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.seeds):
        folders = [arguments.runs / f"{seed}{suffix}" for suffix in ("", "-random")]
        run(folders[0], seed, arguments.options)
        run(folders[1], seed, [*arguments.options, "--set", "query.name=random"])
        rows.append(figures(seed, *map(RunFolder, folders)))
    print_summary(rows)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"options": arguments.options, "runs": rows}, indent=1) + "\n")


def run(folder: Path, seed: int, options: list[str]) -> None:
    """Run one seed, or resume it."""
    if RunFolder(folder).finished:
        return
    command = [sys.executable, "-m", "ducats", "run", *options, "--seed", str(seed), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def figures(seed: int, run_folder: RunFolder, random_folder: RunFolder) -> dict[str, Any]:
    """Return the estimate, and the accuracies of both runs at its stage."""
    (estimate,) = run_folder.read_records("random_gain")
    if "unknown" in estimate:
        sys.exit(f"the gain is not known: {estimate['unknown']}")
    accuracy, random = (
        next(one["accuracy"] for one in folder.stages() if one["stage"] == estimate["stage"])
        for folder in (run_folder, random_folder)
    )
    names = ("stage", "labels", "audit_labels", "estimate", "low", "high")
    return {"seed": seed, **{name: estimate[name] for name in names}, "accuracy": accuracy, "random": random}


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Print the mean estimate and truth, and how often the interval holds the truth."""
    random = {stage: [row["random"] for row in rows if row["stage"] == stage] for stage in range(99)}
    truths = [row["accuracy"] - statistics.mean(random[row["stage"]]) for row in rows]
    errors = [row["estimate"] - truth for row, truth in zip(rows, truths, strict=True)]
    held = sum(row["low"] <= truth <= row["high"] for row, truth in zip(rows, truths, strict=True))
    labels = statistics.mean(row["labels"] for row in rows)
    width = statistics.mean(row["high"] - row["low"] for row in rows)
    estimate, truth = statistics.mean(row["estimate"] for row in rows), statistics.mean(truths)
    print(
        f"{len(rows)} runs, {labels:.0f} labels on average, {rows[0]['audit_labels']} audit labels: estimate "
        f"{100 * estimate:+.2f} points, truth {100 * truth:+.2f} (standard deviation of the error "
        f"{100 * statistics.pstdev(errors):.2f}); mean width {100 * width:.1f}; {held} intervals hold; "
        f"{sum(row['low'] > 0 for row in rows)} exclude zero"
    )


if __name__ == "__main__":
    main()
