"""Segmentation at full size: time and memory of a training step and of a selection round.

    python benchmarks/segmentation.py --out segmentation.json

A step trains DeepLab-v2 on a ResNet-101 with 2 source images of 720 x 1280 and 2 target images of 640 x 1280,
using the package's data streams and training step. A selection round scores images of 640 x 1280 at 1024 x
2048, selects 1 % of the pixels by DUC, looks up the ground truth and appends the labels to the ledger,
including all files.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ducats.acquisition.queries import QUERIES
from ducats.annotation.oracles import GroundTruthOracle
from ducats.data.domain import UNLABELLED, Domain, Images
from ducats.dirichlet import can_compile, compile_formulas
from ducats.ledger import Ledger, RequestWriter, TargetMaps, load_request, open_ledger
from ducats.models import MODELS, EvidentialModel
from ducats.objectives import duc
from ducats.run.pixel_selection import select_pixels
from ducats.runfolder.run_folder import RunFolder
from ducats.settings import Optimisation, PerformanceOptions, StreamViews, TaskOptions
from ducats.training.distributed import make_fabric
from ducats.training.fit import fit_epoch, make_optimiser
from ducats.training.performance import resolve_performance
from ducats.training.placement import place_images, place_label_maps
from ducats.training.predictor import Predictor
from ducats.training.schedules import constant
from ducats.training.step import Step
from ducats.training.streams import Streams

Size = tuple[int, int]


def parse_size(text: str) -> Size:
    """Parse HEIGHTxWIDTH."""
    height, width = text.split("x")
    return int(height), int(width)


def make_images(name: str, count: int, shape: Size, original: Size | None = None) -> Images:
    """Generate smooth noise; the content does not affect the timing."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, shape[0] // 16, shape[1] // 16, generator=generator)
    pixels = torch.nn.functional.interpolate(coarse, shape, mode="bilinear").mul_(255).to(torch.uint8)
    sizes = torch.tensor([list(original or shape)]).repeat(count, 1)
    return Images(tuple(f"{name}/{n}" for n in range(count)), pixels, original_sizes=sizes)


def make_label_maps(count: int, shape: Size, classes: int) -> Tensor:
    """Generate label maps made of blocks."""
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, classes, (count, shape[0] // 32 + 1, shape[1] // 32 + 1), generator=generator)
    tall = blocks.repeat_interleave(32, 1).repeat_interleave(32, 2)
    return tall[:, : shape[0], : shape[1]].to(torch.int8)


def make_model(options: argparse.Namespace) -> EvidentialModel:
    """Build a network with random weights, which do not affect the timing."""
    torch.manual_seed(0)
    network = MODELS[options.model].build(
        classes=options.classes, channels=3, backbone=options.backbone, pretrained=False
    )
    return EvidentialModel(network, "exp_at_most_10")


def time_steps(options: argparse.Namespace, precision: str, graphs: bool, fuse: bool) -> dict[str, Any]:
    """Measure time and peak memory of a training step."""
    fabric = make_fabric(options.device, precision=precision)
    cuda = fabric.device.type == "cuda"
    requested = PerformanceOptions(cuda_graphs=graphs and cuda, compile=fuse and can_compile(fabric.device))
    speed = resolve_performance(requested, fabric, per_pixel=True)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    count = 8
    source_images, pool = place_images(
        [make_images("source", count, options.source), make_images("pool", count, options.target)],
        fabric.device,
    )
    labels = make_label_maps(count, options.source, options.classes)
    source = Domain(
        source_images,
        place_label_maps(labels, fabric.device),
        tuple(f"class {n}" for n in range(options.classes)),
    )
    targets = make_label_maps(count, options.target, options.classes)
    is_labelled = torch.rand(targets.shape, generator=torch.Generator().manual_seed(2)) < 0.05
    targets = targets.masked_fill(~is_labelled, UNLABELLED)
    model = make_model(options)
    if speed.channels_last:
        model.to(memory_format=torch.channels_last)
    optimiser = make_optimiser(
        model.network, Optimisation(lr=1e-5, nesterov=False), fused=bool(speed.fused_optimiser)
    )
    ready, stepper = fabric.setup(model, optimiser)
    step = Step(ready, stepper, duc, fabric, use_cuda_graphs=bool(speed.cuda_graphs))
    device_targets = place_label_maps(targets, fabric.device)

    def epoch(number: int, steps: int) -> dict[str, float]:
        streams = Streams(source, pool, StreamViews(), options.batch, steps, 0)
        return fit_epoch(
            step,
            streams.epoch(number, device_targets, fabric),
            constant,
            first_step=0,
            fabric=fabric,
            on_step=lambda _step, _means: None,
        )

    first = time.perf_counter()
    with compile_formulas(bool(speed.compile)):
        epoch(0, options.warm_up)
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    with compile_formulas(bool(speed.compile)):
        losses = epoch(1, options.steps)
    if cuda:
        torch.cuda.synchronize()
    took = (time.perf_counter() - started) / options.steps
    peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else None
    return {
        "what": "step",
        "precision": precision,
        "graphs": bool(speed.cuda_graphs),
        "compiled": bool(speed.compile),
        "warm_up_s": round(started - first, 1),
        "ms": round(1000 * took, 2),
        "allocated_gb": None if peak is None else round(peak, 2),
        "reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2) if cuda else None,
        "losses": losses,
    }


def time_selection(options: argparse.Namespace, precision: str, query: str) -> dict[str, Any]:
    """Measure images per second of a selection round: forward, score, select, label, append to the ledger."""
    fabric = make_fabric(options.device, precision=precision)
    cuda = fabric.device.type == "cuda"
    (pool,) = place_images(
        [make_images("pool", options.pool, options.target, options.original)], fabric.device
    )
    model = make_model(options)
    if cuda:
        model.to(memory_format=torch.channels_last)
    ready = fabric.setup(model)
    ready.eval()
    ground_truth = make_label_maps(options.pool, options.original, options.classes)
    area = options.original[0] * options.original[1]
    task = TaskOptions(unit="pixel", resolution="original")
    with tempfile.TemporaryDirectory() as folder:
        run_folder = RunFolder(Path(folder))
        ledger: Ledger = open_ledger(run_folder, pool.keys, pool.original_sizes, "original")
        oracle = GroundTruthOracle(ground_truth, "original")
        rates = []
        for number in (1, 2, 3):
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            labelled_at = TargetMaps(
                ledger, options.target, number - 1, resolution="original"
            ).at_label_resolution
            with RequestWriter(run_folder.request_path(number), number) as writer:
                predictor = Predictor(
                    model=ready,
                    view=StreamViews().scoring,
                    batch_size=options.scoring_batch,
                    fabric=fabric,
                    seed=number,
                    two_step_upsampling=task.two_step_upsampling,
                )
                for image, selection in select_pixels(
                    predictor,
                    pool,
                    QUERIES[query].bind({}),
                    unit=task,
                    sizes=pool.original_sizes if pool.original_sizes is not None else torch.zeros(0, 2),
                    known_labels_of=labelled_at,
                    budget=[area // 100] * options.pool,
                ):
                    writer.add(image, selection.position, selection.unit_sizes)
            request = load_request(run_folder, number)
            assert request is not None
            ledger.append(request, oracle(request))
            rates.append(options.pool / (time.perf_counter() - started))
        peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else None
        return {
            "what": "question",
            "query": query,
            "precision": precision,
            "images_per_second": [round(rate, 2) for rate in rates],
            "labels": len(ledger),
            "peak_gb": None if peak is None else round(peak, 2),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="deeplab_v2")
    parser.add_argument("--backbone", default="resnet101")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--source", type=parse_size, default=(720, 1280))
    parser.add_argument("--target", type=parse_size, default=(640, 1280))
    parser.add_argument("--original", type=parse_size, default=(1024, 2048))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pool", type=int, default=100)
    parser.add_argument("--scoring-batch", type=int, default=4)
    parser.add_argument("--precision", nargs="+", default=["bf16-mixed"])
    parser.add_argument("--steps-with", nargs="*", default=["graphs+compiled", "graphs", "nothing"])
    parser.add_argument("--queries", nargs="*", default=["duc", "entropy", "ripu_points", "random"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []

    def save(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            settings = {name: str(value) for name, value in vars(options).items()}
            kept = {"device": device, "torch": torch.__version__, "settings": settings, "rows": rows}
            options.out.write_text(json.dumps(kept, indent=1))

    for precision in options.precision:
        for accelerators in options.steps_with:
            save(time_steps(options, precision, "graphs" in accelerators, "compiled" in accelerators))
        for query in options.queries:
            save(time_selection(options, precision, query))


if __name__ == "__main__":
    main()
