r"""Accuracy with few labels: several methods on small domain pairs.

``chosen_by`` is the accuracy on 200 held-out images that settings may be selected by, as if their labels had
been acquired for that purpose. ``accuracy`` is measured on the remaining images, which are never used for
selection.

    python benchmarks/few_labels.py --digits digits.npz --emoji emoji_64.zip --out few_labels.jsonl \
        --pairs fonts-optdigits fonts-usps --methods ducats duc random --budgets 1 2 5 --seeds 0 1 2

A method is the name of a config, optionally with settings, as in
``duc:query.params.kappa=5,acquisition.growth=1.5``. Each result is one line of the output file. Results
already in the file are not computed again. ``--plot curves.png`` draws the accuracy over the budgets.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import domain_pairs
import variants

if TYPE_CHECKING:  # workers set their threads before importing torch
    from lightning_fabric import Fabric
    from torch import Tensor

    from ducats.run.components import Components
    from ducats.runfolder.run_folder import RunFolder

N_SELECTION_IMAGES = 200  # held-out images for selecting settings

Cell = tuple[str, str, float, int]  # pair, method, budget in per cent, seed


def main() -> None:
    """Run missing cells, then print means and standard deviations."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--emoji", type=Path)
    parser.add_argument("--pairs", nargs="+", default=[*domain_pairs.DIGITS, *domain_pairs.EMOJI])
    parser.add_argument("--methods", nargs="+", default=["ducats", "duc", "random"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[5.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu", help="cpu or cuda; all jobs share one GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("few_labels.jsonl"))
    parser.add_argument("--plot", type=Path, help="image of the curves, mean and standard deviation")
    options = parser.parse_args()
    cells = [
        (pair, method, budget, seed)
        for seed in options.seeds
        for pair in options.pairs
        for budget in options.budgets
        for method in options.methods
    ]
    done = read_results(options.out)
    missing = [cell for cell in cells if cell not in done]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(run_cell, cell, options.digits, options.emoji, options.device) for cell in missing
        ]
        for count, future in enumerate(as_completed(waiting), start=1):
            cell, numbers = future.result()
            done[cell] = numbers
            with options.out.open("a") as file:
                file.write(json.dumps({"cell": cell, **numbers}) + "\n")
            print(f"{count}/{len(missing)}", *cell, numbers["accuracy"], flush=True)
    print(results_table(cells, done))
    if options.plot is not None:
        plot_curves(cells, done, options.plot)


def read_results(path: Path) -> dict[Cell, dict[str, Any]]:
    """Read the results so far."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(line.pop("cell")): line for line in lines}


def run_cell(cell: Cell, digits: Path | None, emoji: Path | None, device: str) -> tuple[Cell, dict[str, Any]]:
    """Run one cell; return final and initial accuracy on the held-out target, and the labels spent."""
    import torch

    from ducats import config
    from ducats.ledger import load_ledger
    from ducats.run import run
    from ducats.run.factory import build_run, resolve_for_machine
    from ducats.runfolder.run_folder import RunFolder
    from ducats.training.distributed import make_fabric

    torch.set_num_threads(1)
    pair, method, budget, seed = cell
    name, method_settings = variants.parse_variant(method)
    overrides = [
        f"acquisition.budget={budget}%",
        f"seed={seed}",
        f"engine.device={device}",
        *method_settings,
    ]
    settings = resolve_for_machine(config.load_config(["data/digits", f"methods/{name}"], overrides))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run_folder = RunFolder(Path(folder) / "run")
        components, plan = build_run(settings, run_folder, domain_pairs.load_pair(pair, digits, emoji))
        fabric = make_fabric(device, precision=settings.engine.precision)
        run(components, plan, run_folder.path, fabric=fabric, performance=settings.engine)
        stages = run_folder.stages()
        n_labels = len(load_ledger(run_folder))
        correct = correct_predictions(components, run_folder, fabric)
    return cell, {
        "accuracy": round(100 * correct[N_SELECTION_IMAGES:].float().mean().item(), 2),
        "chosen_by": round(100 * correct[:N_SELECTION_IMAGES].float().mean().item(), 2),
        "before": round(100 * stages[0]["accuracy"], 2),
        "labels": n_labels,
        "seconds": round(time.monotonic() - started, 1),
    }


def correct_predictions(components: "Components", run_folder: "RunFolder", fabric: "Fabric") -> "Tensor":
    """Return, for each test image, whether the final model classifies it correctly."""
    from ducats.models import EvidentialModel
    from ducats.run.checkpoint import load_model
    from ducats.training.predictor import Predictor

    assert components.test is not None
    model = (
        components.model
        if isinstance(components.model, EvidentialModel)
        else EvidentialModel(components.model)
    )
    model.network.load_state_dict(load_model(run_folder))
    ready = fabric.setup_module(model.eval())
    images, view = components.test.images, components.views.test
    predictor = Predictor(model=ready, view=view, batch_size=500, fabric=fabric)
    samples = predictor.score_images(images, ("z",))
    labels = components.test.labels[:]
    return samples.z.argmax(1).eq(labels)


def results_table(cells: list[Cell], done: dict[Cell, dict[str, Any]]) -> str:
    """Format mean and standard deviation over seeds: a row per method and budget, a column per pair."""
    names = list(dict.fromkeys(pair for pair, *_ in cells))
    rows: dict[tuple[float, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair, method, budget, seed in cells:
        if (pair, method, budget, seed) in done:
            rows[budget, method][pair].append(done[pair, method, budget, seed]["accuracy"])
    lines = [f"| labels | method | {' | '.join(names)} | mean |", "| --- " * (len(names) + 3) + "|"]
    for (budget, method), found in sorted(rows.items(), key=lambda row: row[0][0]):
        values = [_mean_and_std(found[name]) for name in names]
        mean = statistics.mean(statistics.mean(found[name]) for name in names)
        lines.append(f"| {budget:g} % | {method} | {' | '.join(values)} | {mean:.1f} |")
    return "\n".join(lines)


def plot_curves(cells: list[Cell], done: dict[Cell, dict[str, Any]], path: Path) -> None:
    """Draw accuracy over budget, a panel per pair and a line per method, with bands of one deviation."""
    from matplotlib.figure import Figure

    pairs, methods = (list(dict.fromkeys(names)) for names in list(zip(*cells, strict=True))[:2])
    figure = Figure(figsize=(5 * len(pairs), 4), layout="constrained")
    panels = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    for panel, pair in zip(panels, pairs, strict=True):
        for method, marker in zip(methods, "osD^vP*X" * len(methods), strict=False):
            values = defaultdict(list)
            for cell in sorted(done):
                if cell[:2] == (pair, method) and cell in cells:
                    values[cell[2]].append(done[cell]["accuracy"])
            budgets, runs = list(values), list(values.values())
            mean = [statistics.mean(each) for each in runs]
            std = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in runs]
            (line,) = panel.plot(budgets, mean, marker=marker, markersize=4, label=method)
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            panel.fill_between(budgets, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        panel.set(title=str(pair).replace("-", " → "), xlabel="labels, % of the pool")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="accuracy on the test set, %")
    panels[-1].legend(loc="lower right")
    figure.savefig(path, dpi=110)


def _mean_and_std(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    main()
