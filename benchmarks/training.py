"""Speed of training and pool scoring: a plain PyTorch loop, ducats, and ducats on ready tensors (floor).

    python benchmarks/training.py [--source DIR --target DIR] [--weights FILE --strides first]
        [--backbone resnet50] [--steps 60] [--batch 32] [--device auto] [--json FILE]

Source and target are folders of class folders; by default, random JPEGs are written to a temporary folder.
Each step forwards a batch of source, of labelled and of unlabelled target images separately, and updates
once. ducats is measured with default options and with each accelerator switched off in turn.
"""

import argparse
import gc
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image
from plain_loop import TARGET_TRANSFORM, TRAIN_TRANSFORM, ImageFiles, endless_batches, score, train
from torch import Tensor

from ducats.data.domain import UNLABELLED, AdaptationData
from ducats.data.folders import folders
from ducats.models import EvidentialModel, timm_classifier
from ducats.objectives import Batch, LabelledImages, duc
from ducats.settings import Optimisation, PerformanceOptions, StreamViews, View
from ducats.training import placement
from ducats.training.distributed import make_fabric
from ducats.training.fit import make_optimiser
from ducats.training.performance import resolve_performance
from ducats.training.predictor import Predictor
from ducats.training.step import Step
from ducats.training.streams import Streams

SIZE = 224
TRAIN_VIEW = View(crop="random_resized", size=SIZE, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1))
VIEWS = StreamViews(
    source=TRAIN_VIEW,
    labelled=TRAIN_VIEW,
    unlabelled=View(crop="random", size=SIZE),
    scoring=View(crop="center", size=SIZE),
    test=View(crop="center", size=SIZE),
)


def main() -> None:
    """Measure, print a table, and write JSON if requested."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        if options.source is None:
            options.source, options.target = write_images(Path(folder), options.random_images)
        results = measure(options)
    print(as_table(results))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument(
        "--random-images", type=int, default=1024, help="random images per domain, if no folders are given"
    )
    parser.add_argument("--weights", type=str)
    parser.add_argument("--strides", default="timm")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--plain-steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--labelled-batches", type=int, default=2, help="batches of labelled target images")
    parser.add_argument("--scoring-batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=4, help="DataLoader workers of the plain loop")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all rows."""
    fabric = make_fabric(options.device)
    device = fabric.device
    start = time.perf_counter()
    data = folders(source=options.source, target=options.target, ground_truth=True)
    decoded = time.perf_counter() - start
    start = time.perf_counter()
    sent = placement.place_images([data.source.images, data.pool], device)
    synchronise(device)
    uploaded = time.perf_counter() - start
    del sent
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "backbone": options.backbone,
        "batch": f"3 x {options.batch} images of {SIZE}",
        "images": {"source": len(data.source), "pool": len(data.pool)},
        "decode_seconds": round(decoded, 2),
        "upload_seconds": round(uploaded, 2),
        "rows": [],
    }
    for name, figures in measure_variants(options, data):
        results["rows"].append({"name": name, **figures})
        print(name, figures, flush=True)
    return results


def measure_variants(
    options: argparse.Namespace, data: AdaptationData
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield name and figures of each variant."""
    yield "plain loop", measure_plain(options, data, persistent=False)
    yield "plain loop, workers kept", measure_plain(options, data, persistent=True)
    yield "floor: ready tensors", measure_floor(options, data, PerformanceOptions())
    yield "ours", measure_ducats(options, data, PerformanceOptions())
    if options.device == "cpu" or not torch.cuda.is_available():
        return
    yield (
        "ours, images on the host",
        measure_ducats(options, data, PerformanceOptions(image_placement="host")),
    )
    yield "ours, no graphs", measure_ducats(options, data, PerformanceOptions(cuda_graphs=False))
    yield (
        "ours, no fused update",
        measure_ducats(options, data, PerformanceOptions(cuda_graphs=False, fused_optimiser=False)),
    )
    yield "ours, not channels-last", measure_ducats(options, data, PerformanceOptions(channels_last=False))
    yield "ours, float32", measure_ducats(options, data, PerformanceOptions(), "32-true")
    yield "floor, float32", measure_floor(options, data, PerformanceOptions(), "32-true")


def make_model(options: argparse.Namespace, data: AdaptationData) -> EvidentialModel:
    """Build the published network."""
    torch.manual_seed(0)
    return EvidentialModel(
        timm_classifier(
            classes=len(data.classes),
            channels=3,
            backbone=options.backbone,
            pretrained=False,
            weights=options.weights,
            strides=options.strides,
        )
    )


def labelled_targets(options: argparse.Namespace, data: AdaptationData) -> Tensor:
    """Return targets with some batches of labels; two batches are about 5 % of the Webcam images."""
    assert data.ground_truth is not None
    targets = torch.full((len(data.pool),), UNLABELLED)
    count = min(options.labelled_batches * options.batch, len(targets) // 2)
    targets[:count] = data.ground_truth[:count]
    return targets


def measure_plain(options: argparse.Namespace, data: AdaptationData, *, persistent: bool) -> dict[str, float]:
    """Measure the plain loop: float32, Pillow, DataLoader workers."""
    device = make_fabric(options.device, precision="32-true").device
    torch.backends.cudnn.benchmark = False  # the default of PyTorch
    model = make_model(options, data).to(device)
    optimiser = make_optimiser(model.network, Optimisation())
    source, files = data.source.images.files, data.pool.files
    assert source is not None
    assert files is not None
    assert data.ground_truth is not None
    ground_truth = data.ground_truth[:].tolist()
    is_labelled = (labelled_targets(options, data) >= 0).tolist()
    labelled, unlabelled = ([n for n, k in enumerate(is_labelled) if k == wanted] for wanted in (True, False))
    sets = [ImageFiles(source, data.source.labels[:].tolist(), TRAIN_TRANSFORM)]
    for places, transform in ((labelled, TRAIN_TRANSFORM), (unlabelled, TARGET_TRANSFORM)):
        sets.append(ImageFiles([files[n] for n in places], [ground_truth[n] for n in places], transform))
    streams = [endless_batches(some, options.batch, options.workers, persistent=persistent) for some in sets]
    reset_memory(device)
    train(model, optimiser, streams, device, 5)
    step = wall_seconds(device, lambda: train(model, optimiser, streams, device, options.plain_steps))
    peak = peak_memory_gib(device)
    all_files = ImageFiles(files, ground_truth, TARGET_TRANSFORM)
    scored = wall_seconds(
        device, lambda: score(model, all_files, options.scoring_batch, options.workers, device)
    )
    return row_figures(options, step / options.plain_steps, len(files) / scored, peak)


def measure_ducats(
    options: argparse.Namespace, data: AdaptationData, speed: PerformanceOptions, precision: str = "auto"
) -> dict[str, float]:
    """Measure the streams and the step of ducats, as used by a run."""
    fabric = make_fabric(options.device, precision=precision)
    reset_memory(fabric.device)
    step, model = make_step(options, data, speed, fabric)
    source, pool = placement.place_images(
        [data.source.images, data.pool], fabric.device, speed.image_placement
    )
    domain = replace(data.source, images=source)
    targets = labelled_targets(options, data)
    streams = Streams(domain, pool, VIEWS, options.batch, options.steps, seed=0)
    model.train()

    def epoch(number: int) -> None:
        for batch in streams.epoch(number, targets, fabric):
            step(batch, 1.0)

    warm = replace(streams, steps_per_epoch=5)
    for batch in warm.epoch(1000, targets, fabric):
        step(batch, 1.0)
    took = wall_seconds(fabric.device, lambda: epoch(0))
    peak = peak_memory_gib(fabric.device)

    def scored() -> None:
        predictor = Predictor(
            model=model, view=VIEWS.scoring, batch_size=options.scoring_batch, fabric=fabric
        )
        predictor.score_images(pool, ("z",))

    scored()
    return row_figures(options, took / options.steps, len(pool) / wall_seconds(fabric.device, scored), peak)


def measure_floor(
    options: argparse.Namespace, data: AdaptationData, speed: PerformanceOptions, precision: str = "auto"
) -> dict[str, float]:
    """Measure the same step and forward pass on tensors that are already on the device."""
    fabric = make_fabric(options.device, precision=precision)
    reset_memory(fabric.device)
    step, model = make_step(options, data, speed, fabric)
    model.train()
    batch = noise_batch(options.batch, len(data.classes), fabric.device)
    for _ in range(5):
        step(batch, 1.0)

    def steps() -> None:
        for _ in range(options.steps):
            step(batch, 1.0)

    took = wall_seconds(fabric.device, steps)
    peak = peak_memory_gib(fabric.device)
    images = torch.rand(options.scoring_batch, 3, SIZE, SIZE, device=fabric.device)
    rest = len(data.pool) % options.scoring_batch
    model.eval()

    @torch.inference_mode()
    def forward() -> None:
        for _ in range(len(data.pool) // options.scoring_batch):
            model(images)
        if rest:
            model(images[:rest])

    forward()
    return row_figures(
        options, took / options.steps, len(data.pool) / wall_seconds(fabric.device, forward), peak
    )


def make_step(
    options: argparse.Namespace, data: AdaptationData, speed: PerformanceOptions, fabric: Fabric
) -> tuple[Step, torch.nn.Module]:
    """Set up model and step as in a run."""
    resolved = resolve_performance(speed, fabric)
    bare = make_model(options, data)
    if resolved.channels_last:
        bare.to(memory_format=torch.channels_last)
    optimiser = make_optimiser(bare.network, Optimisation(), fused=bool(resolved.fused_optimiser))
    model, stepper = fabric.setup(bare, optimiser)
    return Step(model, stepper, duc, fabric, use_cuda_graphs=bool(resolved.cuda_graphs)), model


def noise_batch(count: int, classes: int, device: torch.device) -> Batch:
    """Return a batch of noise on the device."""
    images = [torch.rand(count, 3, SIZE, SIZE, device=device) for _ in range(3)]
    labels = torch.randint(classes, (2, count), device=device)
    return Batch(LabelledImages(images[0], labels[0]), LabelledImages(images[1], labels[1]), images[2])


def row_figures(options: argparse.Namespace, step: float, scoring: float, peak: float) -> dict[str, float]:
    """Return the figures of one row."""
    return {
        "seconds_per_step": round(step, 5),
        "images_per_second": round(3 * options.batch / step, 1),
        "peak_gb": round(peak, 2),
        "scored_per_second": round(scoring, 1),
    }


def wall_seconds(device: torch.device, act: Callable[[], object]) -> float:
    """Return the wall time, including pending work of the device."""
    synchronise(device)
    start = time.perf_counter()
    act()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_memory(device: torch.device) -> None:
    """Free cached memory and reset the peak counter."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: torch.device) -> float:
    """Return the peak reserved GPU memory in GiB, including decoded images."""
    return torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else 0.0


def as_table(results: dict[str, Any]) -> str:
    """Format the results as Markdown."""
    by_name = {row["name"]: row for row in results["rows"]}
    slow = by_name["plain loop"]
    lines = [
        f"{results['device']}, torch {results['torch']}, {results['backbone']}, {results['batch']}; decoding "
        f"{sum(results['images'].values())} images {results['decode_seconds']} s, upload "
        f"{results['upload_seconds']} s",
        "",
        "| | ms per step | images/s | x plain | x floor | peak GB | scored/s | x bare forward |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        step = row["seconds_per_step"]
        low = by_name["floor, float32" if "float32" in row["name"] else "floor: ready tensors"]
        lines.append(
            f"| {row['name']} | {1000 * step:.1f} | {row['images_per_second']:.0f} | "
            f"{slow['seconds_per_step'] / step:.1f} | {step / low['seconds_per_step']:.2f} | "
            f"{row['peak_gb'] or '–'} | {row['scored_per_second']:.0f} | "
            f"{low['scored_per_second'] / row['scored_per_second']:.2f} |"
        )
    return "\n".join(lines)


def write_images(root: Path, count: int) -> tuple[Path, Path]:
    """Write JPEGs of photo-like noise to two folders of class folders."""
    random = np.random.default_rng(0)
    for domain in ("source", "target"):
        for number in range(count):
            folder = root / domain / f"class{number % 31:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            coarse = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((300, 300), Image.Resampling.BICUBIC)
            image.save(folder / f"{number:05d}.jpg", quality=90)
    return root / "source", root / "target"


if __name__ == "__main__":
    main()
