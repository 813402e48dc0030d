r"""Run the CARLA -> CamVid table: all methods, budgets and seeds, several runs in parallel.

    python benchmarks/carla_camvid.py --root DIR --weights FILE --out carla_camvid.json

By default, the runs are those of `table`. Others:

    python benchmarks/carla_camvid.py --root DIR --weights FILE --out carla_camvid.json --seeds 0 1 2 \
        --methods random ducats duc:objective.params.kl=0.1 --budgets 10/image 40/image

DIR is the data root of ``data/streets-carla-camvid``; each worker reads it once. FILE contains ImageNet
weights of a ResNet-50 with the stride in the first convolution of each block. The JSON is rewritten after
each run and contains all finished runs.

As in published tables, no run knows in advance which target pixels have no class: such pixels can be queried,
and count towards the budget (``data.params.void_pixels=queried``). ``selection_iou`` is the final mIoU on
``camvid_val``, by which settings may be chosen; all other results are on ``camvid_test``.
"""

import argparse
import json
import multiprocessing
import re
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import variants
from lightning_fabric import Fabric
from scipy import ndimage

from ducats import config as configs
from ducats.data.domain import AdaptationData
from ducats.deploy.picks import select_image_keys, write_picks_figure
from ducats.evaluation.evaluate import evaluate_segmentation
from ducats.evaluation.metrics import class_iou
from ducats.ledger import Ledger, load_ledger
from ducats.models import EvidentialModel
from ducats.run import run
from ducats.run.checkpoint import load_model
from ducats.run.components import Components
from ducats.run.factory import build_run, load_data, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor

# Tuned on the synthetic streets for few, hard pixels: lower weights for labelled pixels, U_dis and the KL.
LOW_WEIGHT_SETTINGS = ("objective.params.target=0.2", "objective.params.beta=0.1", "objective.params.kl=0.3")


@dataclass(frozen=True)
class Row:
    """One run."""

    method: str
    budget: str | None = "5%"
    seed: int = 0
    network: str = "deeplab_v2"
    light: bool = False

    @property
    def name(self) -> str:
        """Name of the run folder."""
        fields = (self.network, self.method, self.budget and self.budget.strip("%").replace("/", "-per-"))
        parts = (*fields, "light" if self.light else None, self.seed)
        return re.sub(r"[^\w.-]+", "-", "-".join(str(part) for part in parts if part is not None))


def table() -> list[Row]:
    """Return all runs, the most important first."""
    rows = [Row("source-only", None), Row("fully-supervised", None)]
    for seed in (0, 1, 2):
        for budget in ("5%", "1%"):
            rows += [
                Row("random", budget, seed),
                Row("duc", budget, seed),
                Row("duc", budget, seed, light=True),
            ]
    for budget in ("5%", "1%"):
        rows += [Row(method, budget) for method in ("entropy", "ripu", "duc-random")]
    rows += [Row("source-only", None, network="deeplab_v3plus")]
    rows += [Row(method, network="deeplab_v3plus") for method in ("random", "duc")]
    rows += [Row("duc", network="deeplab_v3plus", light=True)]
    rows += [Row("random", "40/image"), Row("duc", "40/image"), Row("duc", "40/image", light=True)]
    rows += [Row(method, None) for method in ("mrkld", "seg-uncertainty", "tpld", "proda")]
    rows += [Row(method) for method in ("eada-seg", "aada-seg", "mada")]
    rows += [Row(method, "40/image") for method in ("ripu-points", "duc-random", "ducats")]
    rows += [Row(method, "40/image", 1) for method in ("random", "duc", "duc-random", "ducats")]
    return rows


_data: dict[str, AdaptationData] = {}


def make_config(row: Row, settings: tuple[str, ...] = ()) -> configs.Config:
    """Return the config of a run."""
    method, method_settings = variants.parse_variant(row.method)
    overrides = [
        f"seed={row.seed}",
        f"model.name={row.network}",
        "data.params.void_pixels=queried",
        *settings,
        *(LOW_WEIGHT_SETTINGS if row.light else ()),
        *method_settings,
    ]
    if row.budget is not None:
        overrides.append(f"acquisition.budget={row.budget}")
    return resolve_for_machine(
        configs.load_config(["data/streets-carla-camvid", f"methods/{method}"], overrides)
    )


def run_one(row: Row, settings: tuple[str, ...], folder: str) -> dict[str, Any]:
    """Run one configuration in this process."""
    started = time.perf_counter()
    config = make_config(row, settings)
    if not _data:
        _data["all"] = load_data(config)
        _data["selection"] = load_data(_evaluated_on(config, "camvid_val"))
    data = _data["all"]
    run_folder = RunFolder(Path(folder) / row.name)
    components, plan = build_run(config, run_folder, data)
    engine = config.engine
    fabric = make_fabric(engine.device, precision=engine.precision)
    run(
        components,
        plan,
        run_folder.path,
        fabric=fabric,
        identity=config.identity(),
        performance=config.engine,
    )
    stages, ledger = run_folder.stages(), load_ledger(run_folder)
    if row in (Row("duc"), Row("duc", light=True)):
        classes, out = run_folder.data_summary["classes"], Path(folder) / f"picks-{row.name}.png"
        keys = select_image_keys(ledger)
        write_picks_figure(ledger, data.pool, out, image_keys=keys, classes=classes)
    torch.cuda.empty_cache()
    return {
        **asdict(row),
        "labels": len(ledger),
        "clicks": ledger.clicks(),
        "bought": describe_selection(ledger, data) if len(ledger) else None,
        "seconds": round(time.perf_counter() - started, 1),
        "mean_iou": [round(stage["mean_iou"], 4) for stage in stages],
        "selection_iou": round(_mean_iou(components, run_folder, fabric), 4),
        "accuracy": round(stages[-1]["accuracy"], 4),
        "ece": round(stages[-1]["ece"], 4),
        "class_iou": dict(zip(data.classes, [_round(v) for v in stages[-1]["class_iou"]], strict=True)),
        "before": dict(zip(data.classes, [_round(v) for v in stages[0]["class_iou"]], strict=True)),
    }


def _evaluated_on(config: configs.Config, part: str) -> configs.Config:
    """Return the config with another part of the data as its test set."""
    params = {**config.data.params, "test": part}
    return config.model_copy(update={"data": replace(config.data, params=params)})


def _mean_iou(components: Components, run_folder: RunFolder, fabric: Fabric) -> float:
    """Return the mIoU of the final model on the images for choosing settings."""
    test, options = _data["selection"].test, components.evaluation
    assert test is not None
    network = components.model
    model = network if isinstance(network, EvidentialModel) else EvidentialModel(network)
    model.network.load_state_dict(load_model(run_folder))
    predictor = Predictor(
        model=fabric.setup_module(model.eval()), view=components.views.test, batch_size=4, fabric=fabric
    )
    tally = evaluate_segmentation(
        predictor, test, resolution=options.resolution, average_flipped=options.average_flipped
    )
    return float(np.mean([iou for iou in class_iou(tally.confusion) if iou is not None]))


def describe_selection(ledger: Ledger, data: AdaptationData, border_distance: int = 3) -> dict[str, Any]:
    """Return fractions of classes, void and pixels near a border, and connected components per image."""
    assert ledger.sizes is not None
    assert data.ground_truth is not None
    class_counts = torch.zeros(len(data.classes))
    pieces, border, total = 0, 0, 0
    for image, (height, width) in enumerate(ledger.sizes.tolist()):
        position, label = ledger.image_labels(image)
        is_selected = np.zeros(height * width, bool)
        is_selected[position.numpy()] = True
        pieces += int(ndimage.label(is_selected.reshape(height, width), np.ones((3, 3)))[1])
        ground_truth = np.asarray(data.ground_truth[image])
        lowest, highest = (
            f(ground_truth, 2 * border_distance + 1) for f in (ndimage.minimum_filter, ndimage.maximum_filter)
        )
        border += int((lowest != highest).reshape(-1)[position.numpy()].sum())
        class_counts += torch.bincount(label[label >= 0], minlength=len(class_counts))
        total += len(position)
    return {
        "classes": dict(
            zip(data.classes, [round(v, 4) for v in (class_counts / total).tolist()], strict=True)
        ),
        "void": round(1 - float(class_counts.sum()) / total, 4),
        "pieces_per_image": round(pieces / len(ledger.keys), 1),
        f"within_{border_distance}_of_a_border": round(border / total, 4),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all or selected rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--runs", default="runs/carla-camvid", help="parent folder of the run folders")
    parser.add_argument("--jobs", type=int, default=4, help="number of parallel runs")
    parser.add_argument("--only", nargs="*", help="names of runs, as printed by --list")
    parser.add_argument("--methods", nargs="*", help="methods, with settings: NAME:key=value,...")
    parser.add_argument("--budgets", nargs="*", default=["40/image"], help="budgets of --methods")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="seeds of --methods")
    parser.add_argument("--set", nargs="*", default=[], help="additional key=value settings")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--steps", type=int, default=60, help="steps per epoch")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("carla_camvid.json"))
    options = parser.parse_args(arguments)
    named = [Row(*cell) for cell in product(options.methods or (), options.budgets, options.seeds)]
    rows = [row for row in named or table() if not options.only or row.name in options.only]
    if options.list:
        print(*(row.name for row in rows), sep="\n")
        return
    settings = (
        *(f"data.params.root={options.root}", f"model.params.weights={options.weights}"),
        *("model.params.backbone=resnet50", "model.params.strides=first", "engine.compile=false"),
        "model.freeze=none",  # also without a GPU
        *(f"train.epochs={options.epochs}", f"train.steps_per_epoch={options.steps}"),
        *options.set,
    )
    done: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        todo = {pool.submit(run_one, row, settings, options.runs): row for row in rows}
        for future in as_completed(todo):
            try:
                done.append(future.result())
                message = f"{100 * done[-1]['mean_iou'][-1]:.1f} {done[-1]['seconds']} s"
            except Exception as error:  # a failed run must not stop the others
                message = f"failed: {error}"
            print(todo[future].name, message, flush=True)
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            report = {"device": device, "torch": torch.__version__, "settings": settings[2:], "runs": done}
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
