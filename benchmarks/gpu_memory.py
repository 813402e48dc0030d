"""Memory of a GPU before, during and after several runs in one process, without Python's cycle collector.

python benchmarks/gpu_memory.py --runs 3 --out gpu_memory.json
"""

import argparse
import gc
import json
import tempfile
from pathlib import Path

import torch

from ducats.config import load_config
from ducats.run import run
from ducats.run.factory import build_run
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import make_fabric

IMAGES = (
    "data={name: toy, params: {n_classes: 31, n_source_per_class: 4, n_pool: 200, n_test: 50, size: 224}}",
    "model={name: timm, params: {backbone: resnet50, pretrained: false}}",
    "train.epochs=3",
    "train.steps_per_epoch=20",
    "acquisition={budget: 40, rounds: null, after_epochs: [1, 2]}",
)
PIXELS = (
    "data.params={n_source: 8, n_pool: 8, n_test: 2, height: 256, width: 512}",
    "model={name: deeplab_v2, params: {backbone: resnet50, pretrained: false}}",
    "train.epochs=3",
    "train.steps_per_epoch=20",
    "train.batch_size=2",
    "acquisition={budget: 5%, rounds: null, after_epochs: [1, 2]}",
)
JOBS: tuple[tuple[list[str], str, tuple[str, ...]], ...] = (
    ([], "ducats", IMAGES),
    ([], "clue", IMAGES),
    ([], "tqs", IMAGES),
    (["data/streets"], "ducats", PIXELS),
    (["data/streets"], "proda", PIXELS),
    (["data/streets"], "tpld", PIXELS),
)


def gib(n_bytes: int) -> float:
    """Convert bytes to GiB."""
    return round(n_bytes / 2**30, 3)


def measure(files: list[str], method: str, settings: tuple[str, ...]) -> dict[str, float]:
    """Run a method; return the peak and what is left afterwards, in GiB."""
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config([*files, f"methods/{method}"], [*settings, "engine.device=cuda"], {})
        path = Path(folder) / "run"
        components, plan = build_run(config, RunFolder(path))
        run(components, plan, path, fabric=make_fabric("cuda", precision=config.engine.precision))
    return {
        "peak_reserved": gib(torch.cuda.max_memory_reserved()),
        "allocated_after": gib(torch.cuda.memory_allocated()),
        "reserved_after": gib(torch.cuda.memory_reserved()),
    }


def main() -> None:
    """Print and save the memory of each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of methods; default: all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.init()
    gc.collect()
    gc.disable()
    rows = []
    for files, method, settings in JOBS:
        if options.only and method not in options.only:
            continue
        for number in range(1, options.runs + 1):
            rows.append({"method": method, "run": number, **measure(files, method, settings)})
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
