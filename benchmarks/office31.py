r"""Run the Office-31 tables: the runs of its sweeps, several in parallel; each worker decodes images once.

    python benchmarks/office31.py --root DIR --weights FILE --jobs 4 --out office31.jsonl

By default, the runs are those of ``ducats sweep office31`` and ``office31-ablation``: W -> A with three
seeds, A -> W with one, and the ablation on W -> A, the most important first. ``--methods`` gives others, such
as curves over labels:

    python benchmarks/office31.py --root DIR --weights FILE --tasks W-A --budgets 1% 2.5% 5% --seeds 0 1 2 \
        --methods ducats duc "ducats:acquisition.after_epochs=[10, 12, 14, 16, 18]"

Each result is one line of the output file; runs already in the file are skipped. FILE contains ImageNet
weights of a ResNet-50 with the stride in the first convolution of each block.
"""

import argparse
import json
import multiprocessing
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import torch
import variants

from ducats.config import Config, load_config
from ducats.config.options import DataOptions
from ducats.data.domain import AdaptationData
from ducats.ledger import load_ledger
from ducats.run import run
from ducats.run.factory import build_run, load_data, prepare_for_views
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep import SweepFilter, SweepRun, expand_sweep, read_sweep
from ducats.training.distributed import make_fabric

# Sweep, task, seeds.
TABLES = (
    ("office31", "W-A", (0,)),
    ("office31-ablation", "W-A", (0,)),
    ("office31", "W-A", (1, 2)),
    ("office31", "A-W", (0,)),
    ("office31-fixmatch", "W-A", (0, 1, 2)),
)

_data: dict[str, AdaptationData] = {}


def selected_runs(options: argparse.Namespace) -> list[tuple[str, Config]]:
    """Return all runs by name, without duplicates."""
    settings = (
        *(f"model.params.weights={options.weights}", "model.params.strides=first"),
        *("engine.precision=bf16-mixed", "evaluation.every_epochs=null"),
        *(f"train.epochs={options.epochs}", f"train.steps_per_epoch={options.steps}"),
        *options.set,
    )
    found: dict[str, SweepRun] = {}
    if options.methods:
        return _named_runs(options, settings)
    for sweep, task, seeds in TABLES:
        if options.tables and sweep not in options.tables:
            continue
        data = DataOptions(root=options.root)
        sweep_filter = SweepFilter(data=data, settings=settings, seeds=seeds, tasks=[task])
        for cell in expand_sweep(read_sweep(sweep), sweep_filter, options.device):
            found.setdefault(f"{task} {cell.method} {cell.config.seed}", cell)
    named = options.only or list(found)
    return [
        (name, cell.config)
        for name, cell in found.items()
        if name in named and cell.method not in options.skip
    ]


def _named_runs(options: argparse.Namespace, settings: Sequence[str]) -> list[tuple[str, Config]]:
    """Return the runs of ``--methods``, for all tasks, budgets and seeds."""
    runs = []
    for seed, budget, task, variant in product(
        options.seeds, options.budgets, options.tasks, options.methods
    ):
        method, own_settings = variants.parse_variant(variant)
        data_settings = [f"data.params.root={options.root}", f"data.params.task={task}"]
        run_settings = [f"seed={seed}", f"acquisition.budget={budget}"]
        config = load_config(
            ["data/office31", f"methods/{method}"],
            [*data_settings, *settings, *run_settings, *own_settings],
        )
        runs.append((f"{task} {variant} {budget} {seed}", config))
    return runs


def run_one(name: str, config: Config, device: str, folder: Path, keep: bool) -> dict[str, Any]:
    """Run one configuration in this process."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    task = name.split()[0]
    if task not in _data:
        _data[task] = prepare_for_views(load_data(config), config.views)
    run_folder = RunFolder(folder / re.sub(r"[^\w.-]+", "-", name))
    components, plan = build_run(config, run_folder, _data[task])
    fabric = make_fabric(device, precision=config.engine.precision)
    identity, speed = config.identity(), config.engine
    run(components, plan, run_folder.path, fabric=fabric, identity=identity, performance=speed)
    stages = run_folder.stages()
    result = {
        "run": name,
        "labels": len(load_ledger(run_folder)),
        "accuracy": [round(100 * stage["accuracy"], 2) for stage in stages],
        "ece": [round(100 * stage["ece"], 2) for stage in stages],
        "pseudo_labels": [[r["count"], r.get("correct")] for r in run_folder.read_records("pseudo_labels")],
        "seconds": round(time.perf_counter() - started, 1),
    }
    if not keep:
        shutil.rmtree(run_folder.path)
    torch.cuda.empty_cache()
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing runs."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/office31"), help="parent folder of the run folders"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the run folders (each has a model of 94 MB)"
    )
    parser.add_argument("--tables", nargs="*", help="only these sweeps")
    parser.add_argument("--only", nargs="*", help="only these runs, as printed by --list")
    parser.add_argument("--methods", nargs="*", help="methods, with settings: NAME:key=value,...")
    parser.add_argument("--tasks", nargs="*", default=["W-A"], help="tasks of --methods")
    parser.add_argument("--budgets", nargs="*", default=["5%"], help="budgets of --methods")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="seeds of --methods")
    parser.add_argument("--skip", nargs="*", default=[], help="methods to skip")
    parser.add_argument("--set", nargs="*", default=[], help="additional key=value settings for all runs")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=25, help="steps per epoch; 25 are one pass over Webcam")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=4, help="number of parallel runs")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("office31.jsonl"))
    options = parser.parse_args(arguments)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["run"] for line in lines}
    rows = [(name, config) for name, config in selected_runs(options) if name not in done]
    if options.list:
        print(*(name for name, _ in rows), sep="\n")
        return
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        todo = {
            pool.submit(run_one, name, config, options.device, options.runs, options.keep): name
            for name, config in rows
        }
        for future in as_completed(todo):
            try:
                result = future.result()
            except Exception as error:  # a failed run must not stop the others
                print(todo[future], "failed:", error, flush=True)
                continue
            with options.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(result["run"], result["accuracy"], result["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
