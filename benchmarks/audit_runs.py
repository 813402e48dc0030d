r"""Audit figures against the truth: whole runs that know their accuracy from the audit only.

    python benchmarks/audit_runs.py --seeds 20 --out audit.jsonl -- -c data/digits --budget 130 --audit 40

All that follows ``--`` are options of ``ducats run``; the data must have the labels of the target. The truth
is the accuracy on all target images without a label (``evaluation.split=unlabelled``), which no part of a run
reads. With ``--until RULE``, each run is repeated with this rule. Finished runs are read from ``--runs``.
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
    """Run what is missing, and print coverage, width and error, and what the rule saved."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--until", help="stop rule, as in `ducats run --until`")
    parser.add_argument("--runs", type=Path, default=Path("runs/audit"), help="parent of the run folders")
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    parser.add_argument("options", nargs="+", help="options of `ducats run`, after --")
    arguments = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    rules = [None, *([arguments.until] if arguments.until else [])]
    for seed in range(arguments.seeds):
        for rule in rules:
            folder = arguments.runs / f"{seed}{'-stopped' if rule else ''}"
            run(folder, seed, rule, arguments.options)
            results.setdefault(rule or "whole budget", []).append(figures(RunFolder(folder), seed))
    for name, rows in results.items():
        print_summary(name, rows)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"options": arguments.options, "runs": results}, indent=1) + "\n")


def run(folder: Path, seed: int, rule: str | None, options: list[str]) -> None:
    """Run one seed, or resume it."""
    if RunFolder(folder).finished:
        return
    command = [sys.executable, "-m", "ducats", "run", *options, "--seed", str(seed), "--out", str(folder)]
    command += ["--set", "evaluation.split=unlabelled", *(["--until", rule] if rule else [])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def figures(run_folder: RunFolder, seed: int) -> dict[str, Any]:
    """Return the figures of the audit and the truth at each stage."""
    truth = {stage["epoch"]: stage for stage in run_folder.stages()}
    stops = run_folder.read_records("stop")
    return {
        "seed": seed,
        "labels": run_folder.stages()[-1]["labels"],
        "stop": stops[0] if stops else None,
        "stages": [
            {
                **{name: audit[name] for name in ("labels", "images", "accuracy", "low", "high")},
                "gain": audit.get("gain"),
                "truth": truth[audit["epoch"]]["accuracy"],
                "evaluated": truth[audit["epoch"]]["images"],
            }
            for audit in run_folder.read_records("audit")
        ],
    }


def is_covered(stage: dict[str, Any]) -> bool:
    """Return whether the interval contains the truth, up to rounding: its ends are often attained."""
    return bool(stage["low"] - 1e-6 <= stage["truth"] <= stage["high"] + 1e-6)


def print_summary(name: str, rows: list[dict[str, Any]]) -> None:
    """Print how often the intervals hold, how wide they are, and what was spent."""
    stages = [stage for row in rows for stage in row["stages"]]
    held = sum(map(is_covered, stages))
    all_held = sum(all(map(is_covered, row["stages"])) for row in rows)
    last = [row["stages"][-1] for row in rows]
    width = statistics.mean(stage["high"] - stage["low"] for stage in last)
    error = statistics.mean(stage["accuracy"] - stage["truth"] for stage in last)
    absolute = statistics.mean(abs(stage["accuracy"] - stage["truth"]) for stage in last)
    labels = statistics.mean(row["labels"] for row in rows)
    accuracy = statistics.mean(stage["truth"] for stage in last)
    print(
        f"{name}: {len(rows)} runs, {labels:.1f} labels, accuracy {100 * accuracy:.2f} %; all stages covered "
        f"in {all_held} runs, {held} of {len(stages)} stages; last stage: width {100 * width:.1f} points, "
        f"mean error {100 * error:+.2f}, absolute {100 * absolute:.2f}; "
        f"{sum(row['stop'] is not None for row in rows)} stopped"
    )


if __name__ == "__main__":
    main()
