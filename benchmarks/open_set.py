r"""Runs whose source lacks a class of the target: when the class is found, and how well it is learnt.

    python benchmarks/open_set.py --source amazon --target webcam --classes back_pack monitor trash_can \
        --seeds 1 2 3 --methods ducats random --out open-set.json -- --backbone offline --budget 5%

For each class, the source is a folder of links without it. All that follows ``--`` are options of ``ducats
run``. Finished runs are read from ``--runs``.
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
    """Run what is missing, and print a row per method."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--source", type=Path, required=True, help="folder with a subfolder per class")
    parser.add_argument("--target", type=Path, required=True, help="the same")
    parser.add_argument("--classes", nargs="+", required=True, help="each is held back once")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=["ducats", "random"])
    parser.add_argument("--runs", type=Path, default=Path("runs/open-set"), help="parent of the run folders")
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    parser.add_argument("options", nargs="*", help="options of `ducats run`, after --")
    arguments = parser.parse_args()
    rows = []
    for held_back in arguments.classes:
        source = source_without(held_back, arguments.source, arguments.runs / "sources" / held_back)
        for method in arguments.methods:
            for seed in arguments.seeds:
                folder = arguments.runs / f"{held_back}-{method}-{seed}"
                data = ["--source", str(source), "--target", str(arguments.target)]
                run(folder, [*data, "--method", method, "--seed", str(seed), *arguments.options])
                rows.append(
                    {"class": held_back, "method": method, "seed": seed}
                    | figures(RunFolder(folder), held_back)
                )
                print(json.dumps(rows[-1]))
    for method in arguments.methods:
        print_summary(method, [row for row in rows if row["method"] == method])
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"options": arguments.options, "runs": rows}, indent=1) + "\n")


def source_without(held_back: str, source: Path, folder: Path) -> Path:
    """Return a folder with links to all classes but one."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        link = folder / path.name
        if path.is_dir() and path.name != held_back and not link.exists():
            link.symlink_to(path.resolve(), target_is_directory=True)
    return folder


def run(folder: Path, options: list[str]) -> None:
    """Run once, or resume."""
    if RunFolder(folder).finished:
        return
    command = [sys.executable, "-m", "ducats", "run", *options, "--ground-truth", "--new-classes"]
    command += ["--set", "evaluation.split=unlabelled", "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def figures(run_folder: RunFolder, held_back: str) -> dict[str, Any]:
    """Return when the class was found, and the accuracy on the target images without a label."""
    stages, number = run_folder.stages(), run_folder.classes.number(held_back)
    predicted = run_folder.read_records("added_classes")
    names = stages[-1].get("class_names", run_folder.classes.names)
    return {
        "found_in_round": dict(run_folder.classes.added).get(held_back),
        "labels": stages[-1]["labels"],
        "labels_of_class": 0 if number is None else run_folder.count_class_labels()[number],
        "predicted": predicted[-1]["predicted"][str(number)] if predicted else 0,
        "accuracy": [stage["accuracy"] for stage in stages],
        "class_accuracy": stages[-1]["class_accuracy"][names.index(held_back)],
    }


def print_summary(method: str, rows: list[dict[str, Any]]) -> None:
    """Print means over all runs of a method."""
    found = [row["found_in_round"] for row in rows if row["found_in_round"] is not None]
    columns = ("labels_of_class", "predicted", "class_accuracy")
    means = {name: statistics.mean(row[name] for row in rows) for name in columns}
    accuracy = statistics.mean(row["accuracy"][-1] for row in rows)
    print(
        f"{method}: found in {len(found)} of {len(rows)} runs, in rounds {sorted(found)}; "
        f"{means['labels_of_class']:.1f} labels, {means['predicted']:.1f} images predicted, accuracy "
        f"{100 * accuracy:.1f} %, on the class {100 * means['class_accuracy']:.1f} %"
    )


if __name__ == "__main__":
    main()
