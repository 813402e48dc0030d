r"""Audit figures against the truth: whole runs that know their accuracy from the audit only.

    python benchmarks/audit_runs.py --seeds 20 --out audit.jsonl -- -c data/digits --budget 130 --audit 40

All that follows ``--`` are options of ``ducats run``; the data must have the labels of the target. The truth
is the accuracy on all target images without a label (``evaluation.split=unlabelled``), or mIoU and pixel
accuracy on all target pixels without one, which no part of a run reads. With ``--until RULE``, each run is
repeated with this rule. Finished runs are read from ``--runs``.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from ducats.runfolder.records import audit_intervals
from ducats.runfolder.run_folder import RunFolder

RECORDED_NAMES = {"accuracy": "accuracy", "pixel accuracy": "accuracy", "mIoU": "mean_iou"}


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
    """Return the intervals of the audit and the truth at each stage."""
    truth = {stage["epoch"]: stage for stage in run_folder.stages()}
    stops = run_folder.read_records("stop")
    return {
        "seed": seed,
        "labels": run_folder.stages()[-1]["labels"],
        "stop": stops[0] if stops else None,
        "stages": [
            {
                "labels": audit["labels"],
                "population": audit.get("pixels", audit.get("images")),
                "gain": audit.get("gain"),
                **{
                    name: {**interval, "truth": truth[audit["epoch"]][RECORDED_NAMES[name]]}
                    for name, interval in audit_intervals(audit).items()
                },
            }
            for audit in run_folder.read_records("audit")
        ],
    }


def is_covered(one: dict[str, float]) -> bool:
    """Return whether the interval contains the truth, up to rounding: its ends are often attained."""
    return one["low"] - 1e-6 <= one["truth"] <= one["high"] + 1e-6


def print_summary(name: str, rows: list[dict[str, Any]]) -> None:
    """Print how often the intervals hold, how wide they are, and what was spent."""
    labels = statistics.mean(row["labels"] for row in rows)
    stopped = sum(row["stop"] is not None for row in rows)
    print(f"{name}: {len(rows)} runs, {labels:.1f} labels, {stopped} stopped")
    for measure in (key for key in rows[0]["stages"][0] if key in RECORDED_NAMES):
        runs = [[stage[measure] for stage in row["stages"]] for row in rows]
        held, all_held = (
            sum(is_covered(one) for run in runs for one in run),
            sum(all(map(is_covered, run)) for run in runs),
        )
        print(f"  {measure}: all stages covered in {all_held} runs, {held} of {sum(map(len, runs))} stages")
        for stages in itertools.zip_longest(*runs):
            found = [one for one in stages if one is not None]
            truth, width, error, absolute = (
                100 * statistics.mean(values)
                for values in (
                    [one["truth"] for one in found],
                    [one["high"] - one["low"] for one in found],
                    [one["estimate"] - one["truth"] for one in found],
                    [abs(one["estimate"] - one["truth"]) for one in found],
                )
            )
            print(
                f"    truth {truth:.2f} %, width {width:.1f} points, error {error:+.2f}, "
                f"absolute {absolute:.2f}"
            )


if __name__ == "__main__":
    main()
