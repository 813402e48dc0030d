"""Estimated cost of scoring a billion images, computed from measured rates.

    python benchmarks/scoring_cost.py measure [--device auto] [--precision bf16-mixed] [--networks resnet50]
        --out F
    python benchmarks/scoring_cost.py estimate F [--images 1e9] [--gpus 8 64] [--cores 16 32 100]
        [--budget 100000]

``measure`` measures two rates in images per second: one thread that decodes JPEGs of 500 x 375 from memory
for a network with 224 x 224 input, and one process that receives decoded blocks (transfer to the device,
model, both uncertainties, top-k selection). ``estimate`` prints the bytes and hours that a pool takes.
"""

import argparse
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scoring import make_run, write_images

from ducats.data.streaming import PoolSample, open_pool
from ducats.deploy import load_trained_model, supported_precision
from ducats.deploy.scoring import chunk, score_chunk
from ducats.deploy.scoring.reader import DecodedBlock, decode_sample
from ducats.deploy.scoring.streaming_query import make_streaming_query
from ducats.training.distributed import make_fabric

DECODED_SIZE = (256, 256)
KEY_CHARS = 50  # characters
# Bytes of a stored sample: scores, prediction, number, length of the key, key.
SAMPLE_BYTES = 6 * 4 + 2 + 8 + 8 + KEY_CHARS


def main() -> None:
    """Run the chosen command."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("measure")
    first.add_argument("--device", default="auto")
    first.add_argument("--precision", default="bf16-mixed")
    first.add_argument("--networks", nargs="+", default=["resnet50"])
    first.add_argument("--batch", type=int, default=256)
    first.add_argument("--blocks", type=int, default=100)
    first.add_argument("--out", type=Path, required=True)
    first.set_defaults(do=measure)
    second = commands.add_parser("estimate")
    second.add_argument("rates", type=Path)
    second.add_argument("--images", type=float, default=1e9)
    second.add_argument("--gpus", type=int, nargs="+", default=[8, 64])
    second.add_argument("--cores", type=int, nargs="+", default=[16, 32, 100], help="CPU cores per GPU")
    second.add_argument("--budget", type=int, default=100_000)
    second.add_argument("--kappa", type=int, default=10)
    second.set_defaults(do=estimate)
    options = parser.parse_args()
    options.do(options)


def measure(options: argparse.Namespace) -> None:
    """Measure the rates of this machine and write them."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "gpu": gpu}
    found |= {"cores": os.cpu_count(), "torch": torch.__version__, "precision": options.precision}
    found |= {"batch": options.batch, "blocks": options.blocks, "device": options.device}
    with tempfile.TemporaryDirectory() as folder:
        pool = write_images(Path(folder), 256, shards=False)
        samples = list(next(open_pool(str(pool)).blocks(0, 1, 256)))
        found |= measure_decoding(samples)
        found["networks"] = {}
        for network in options.networks:
            run = make_run(Path(folder) / network, network, options.batch, options.precision)
            found["networks"][network] = measure_model(run, samples, options)
            print(network, found["networks"][network], flush=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def measure_decoding(samples: list[PoolSample]) -> dict[str, float]:
    """Measure the decoding rate of one thread, with files cached in memory."""
    size = sum(len(sample.read()) for sample in samples) / len(samples)
    began, seconds = time.thread_time(), math.inf
    for _ in range(3):
        began = time.thread_time()
        for sample in samples:
            decode_sample(sample, DECODED_SIZE, 3)
        seconds = min(seconds, time.thread_time() - began)
    return {"bytes_per_image": size, "decoded_per_core_second": len(samples) / seconds}


def measure_model(run: Path, samples: list[PoolSample], options: argparse.Namespace) -> dict[str, Any]:
    """Measure the rate of one process with decoded images."""
    trained = load_trained_model(run)
    images = [decode_sample(sample, DECODED_SIZE, 3) for sample in samples]
    image_index = [n % len(images) for n in range(options.batch)]
    pixels = torch.from_numpy(np.stack([images[n][0] for n in image_index]))
    aspect = torch.tensor([images[n][1] for n in image_index])

    def decoded_blocks(count: int) -> Iterator[DecodedBlock]:
        for block in range(count):
            numbers = list(range(block * options.batch, (block + 1) * options.batch))
            yield DecodedBlock([f"{n:012d}.jpg" for n in numbers], numbers, pixels, aspect, [])

    precision = supported_precision(trained, options.device)
    fabric = make_fabric(options.device, precision=precision)
    pool, plan = open_pool(str(Path(run).parent / "pool")), make_streaming_query(trained.config, "duc", 1000)
    best = math.inf
    for count in (3, options.blocks, options.blocks):  # the first is the warm-up
        with mock.patch.object(chunk, "decode_blocks", lambda *_, count=count: decoded_blocks(count)):
            result = score_chunk(
                trained, pool, 0, 1, streaming_query=plan, fabric=fabric, batch_size=options.batch
            )
        best = min(best, result.seconds) if count > 3 else best
    return {"images_per_second": options.batch * options.blocks / best, "precision": precision}


def estimate(options: argparse.Namespace) -> None:
    """Print the estimated cost."""
    rates = json.loads(options.rates.read_text("utf-8"))
    images, size = options.images, rates["bytes_per_image"]
    # A single thread decodes faster than one of many that share caches and clocks. If a whole scoring was
    # measured on all cores, use its rate.
    whole_scoring = rates.get("whole")
    decoded = (
        whole_scoring["images_per_second"] / whole_scoring["cores"]
        if whole_scoring
        else rates["decoded_per_core_second"]
    )
    print(f"{images:.0e} images of {size / 1e3:.0f} kB: {images * size / 1e12:.0f} TB")
    print(
        f"reading and decoding: {images / decoded / 3600:.0f} core hours at {decoded:.0f} images/s per core"
    )
    kept = options.kappa * options.budget
    for network, found in rates["networks"].items():
        rate = found["images_per_second"]
        print(f"{network}: {images / rate / 3600:.0f} GPU hours at {rate:.0f} images/s")
        print(f"  cores needed to keep one GPU busy: {rate / decoded:.0f}")
        for gpus in options.gpus:
            print(f"  {gpus} GPUs: {images / rate / gpus / 3600:.1f} h if limited by the model")
            for cores in options.cores:
                each = min(rate, cores * decoded)
                line = f"    with {cores} cores each: {images / each / gpus / 3600:.1f} h"
                print(f"{line}, {each * size * 8 / 1e9:.2f} Gbit/s per GPU, {each * gpus:.0f} images/s")
            print(
                f"    to merge: {gpus * kept * SAMPLE_BYTES / 1e9:.1f} GB in {gpus} chunks of {kept} samples"
            )


if __name__ == "__main__":
    main()
