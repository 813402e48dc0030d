"""Throughput of `ducats score`: images per second from files on disk to picks, with one or more processes.

    python benchmarks/scoring.py [--networks small resnet18 resnet50] [--processes 1 2] [--images 512]
        [--batch 32] [--device auto] [--precision 32-true] [--shape 500 375] [--shards]
        [--budget 1%] [--out FILE]

Writes random JPEGs (500 x 375 by default) and a run with random weights to a temporary folder. ``small`` is a
CNN on 32 x 32 images, dominated by decoding; other networks take 224 x 224 crops of 256 x 256. Reports three
rates: the whole command including process start, the chunks alone once their processes run, and images per
second of CPU time, which is less sensitive to other load on the machine.
"""

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ducats import config
from ducats.run.checkpoint import write_model
from ducats.run.factory import make_model
from ducats.runfolder.run_folder import RunFolder

CLASSES = 65
SHAPE = (500, 375)
SHARD_IMAGES = 64  # images per shard
N_DISTINCT_IMAGES = 512  # distinct images; they repeat after that


def main() -> None:
    """Measure, print, and write JSON if requested."""
    options = parse()
    cells = list[dict[str, Any]]()
    width, height = options.shape
    with tempfile.TemporaryDirectory() as folder:
        pool = write_images(Path(folder), options.images, shards=options.shards, shape=(width, height))
        size = sum(path.stat().st_size for path in pool.iterdir()) / options.images
        for network in options.networks:
            run = make_run(Path(folder) / network, network, options.batch, options.precision)
            for processes in options.processes:
                out = Path(folder) / f"{network}-{processes}"
                cell = measure(run, pool, out, network, processes, options)
                cells.append({**cell, "bytes_per_image": size})
                print(json.dumps(cells[-1]), flush=True)
                write(cells, options)


def write(cells: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write the results so far."""
    if options.out:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        about: dict[str, Any] = {
            "machine": platform.processor() or platform.machine(),
            "gpu": gpu,
            "cores": os.cpu_count(),
        }
        about |= {"torch": torch.__version__, "images": options.images, "batch": options.batch}
        about |= {"device": options.device, "precision": options.precision}
        about |= {"budget": options.budget, "shards": options.shards, "shape": list(options.shape)}
        options.out.write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n", "utf-8")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["small", "resnet18", "resnet50"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", default="1%", help="number or percentage of samples to select")
    parser.add_argument("--precision", default="32-true", help="engine.precision of the run")
    parser.add_argument("--shape", type=int, nargs=2, default=SHAPE, help="width and height of the files")
    parser.add_argument("--shards", action="store_true", help="tar files instead of a folder")
    parser.add_argument("--out", type=Path, help="JSON output file")
    return parser.parse_args()


def write_images(folder: Path, count: int, *, shards: bool, shape: tuple[int, int] = SHAPE) -> Path:
    """Write JPEGs of smooth noise to a folder or to tar files."""
    pool = folder / "pool"
    pool.mkdir()
    random = np.random.default_rng(0)
    jpegs = list[bytes]()
    for _ in range(min(count, N_DISTINCT_IMAGES)):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize(shape)
        fine = np.asarray(coarse, np.int16) + random.integers(-12, 13, (shape[1], shape[0], 1))
        file = io.BytesIO()
        Image.fromarray(fine.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        jpegs.append(file.getvalue())
    for start in range(0, count, SHARD_IMAGES):
        stop = min(start + SHARD_IMAGES, count)
        members = {f"{number:07d}.jpg": jpegs[number % len(jpegs)] for number in range(start, stop)}
        if not shards:
            for name, data in members.items():
                (pool / name).write_bytes(data)
            continue
        with tarfile.open(pool / f"{start // SHARD_IMAGES:05d}.tar", "w") as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return pool


def make_run(folder: Path, network: str, batch: int, precision: str = "32-true") -> Path:
    """Write the folder of a finished run with an untrained model."""
    settings = ["data.name=toy", f"engine.scoring_batch_size={batch}", f"engine.precision={precision}"]
    if network == "small":
        settings += ["model.name=small_cnn", "views.test={crop: none, size: null}"]
    else:
        settings += ["model.name=timm", f"model.params.backbone={network}", "model.params.pretrained=false"]
        settings += ["views.test={crop: center, size: 224}"]
    run_config = config.load_config(["methods/duc"], settings)
    run_folder = RunFolder(folder)
    size = 32 if network == "small" else 256
    run_folder.claim(
        run_config.identity(), {"classes": [f"c{n}" for n in range(CLASSES)], "size": size, "channels": 3}
    )
    write_model(run_folder, make_model(run_config, CLASSES, 3).network.state_dict())
    run_folder.release()
    return folder


def measure(
    run: Path, pool: Path, out: Path, network: str, processes: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one command and return its rates."""
    command = [sys.executable, "-m", "ducats", "score", str(run), str(pool), "--budget", options.budget]
    command += ["--device", options.device, "--processes", str(processes), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    record = json.loads((out / "score.json").read_text(encoding="utf-8"))
    return {
        "network": network,
        "processes": processes,
        "images": record["images"],
        "images_per_second": record["images_per_second"],
        "of_parts": sum(chunk["images"] / chunk["seconds"] for chunk in record["chunks"]),
        "per_cpu_second": record["images"] / sum(chunk["cpu_seconds"] for chunk in record["chunks"]),
        "peak_mb": [chunk["peak_memory_bytes"] / 2**20 for chunk in record["chunks"]],
    }


if __name__ == "__main__":
    main()
