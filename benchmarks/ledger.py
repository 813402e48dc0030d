"""Ledger at the size of Cityscapes: bytes per label, seconds per round, milliseconds per target map.

    python benchmarks/ledger.py [--images 2975] [--labels 8192] [--rounds 5] [--json FILE]

Adds the given number of pixels per image and round at 1024 x 2048, in random order, and reads target maps of
640 x 1280 in batches of two, as training does. Files are written to a temporary folder (5 bytes per label,
plus twice 4 bytes per label of one round's request) and removed afterwards.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch

from ducats.ledger import Ledger, Request, RequestWriter, TargetMaps

LABEL_SIZE, TARGET_MAP_SIZE, N_CLASSES, N_MAPS = (1024, 2048), (640, 1280), 19, 200


def measure(folder: Path, images: int, labels: int, rounds: int) -> dict[str, Any]:
    """Fill a ledger and read from it."""
    keys, sizes = [f"city/{i:05d}" for i in range(images)], torch.tensor([LABEL_SIZE]).expand(images, 2)
    pixels, rng = LABEL_SIZE[0] * LABEL_SIZE[1], np.random.default_rng(0)
    ledger = Ledger(folder / "labels", keys, sizes, "original")
    step = pixels // (labels * rounds)  # evenly spaced pixels, shifted each round: no duplicates
    seconds: dict[str, list[float]] = {"request": [], "append": []}
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        with RequestWriter(folder / "request.npz", number) as writer:
            for image in range(images):
                positions = (np.arange(labels) * rounds + number - 1) * step + (image % step)
                writer.add(image, torch.from_numpy(rng.permutation(positions)))
        seconds["request"].append(time.perf_counter() - started)
        answers = torch.from_numpy(rng.integers(0, N_CLASSES, images * labels, dtype=np.int8))
        started = time.perf_counter()
        ledger.append(Request.load(folder / "request.npz"), answers)
        seconds["append"].append(time.perf_counter() - started)
    size = sum(path.stat().st_size for path in (folder / "labels").iterdir())
    started = time.perf_counter()
    ledger = Ledger(folder / "labels", keys, sizes, "original")
    result = {
        "labels": len(ledger),
        "megabytes": size / 1e6,
        "bytes a label": size / len(ledger),
        "open, ms": (time.perf_counter() - started) * 1e3,
        "write a request, s": max(seconds["request"]),
        "append, first round, s": seconds["append"][0],
        "append, last round, s": seconds["append"][-1],
    }
    pairs = torch.from_numpy(rng.integers(0, images, (N_MAPS // 2, 2)))
    for label_downsampling in ("cell", "nearest"):
        maps = TargetMaps(ledger, TARGET_MAP_SIZE, fill=label_downsampling)
        maps[pairs[0]]
        started = time.perf_counter()
        for pair in pairs:
            maps[pair]
        result[f"target map ({label_downsampling}), ms an image"] = (
            (time.perf_counter() - started) / N_MAPS * 1e3
        )
    started = time.perf_counter()
    for image in pairs.flatten().tolist():
        ledger.image_labels(image)
    result["an image's labels, ms"] = (time.perf_counter() - started) / N_MAPS * 1e3
    return result


class MemoryMonitor:
    """Sample the anonymous memory of this process every few milliseconds.

    Pages of mapped files are excluded: the system can drop them at any time at no cost.
    """

    def __enter__(self) -> "MemoryMonitor":
        self.first = self.peak = anonymous_memory_mb()
        self._end, self._thread = Event(), Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._end.wait(0.005):
            self.peak = max(self.peak, anonymous_memory_mb())

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def anonymous_memory_mb() -> float:
    """Return anonymous memory in megabytes, or 0 if the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2975)
    parser.add_argument("--labels", type=int, default=8192, help="labels per image and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, MemoryMonitor() as monitor:
        result = measure(Path(folder), options.images, options.labels, options.rounds)
    result |= {"memory before, MB": monitor.first, "peak memory, MB": monitor.peak}
    for name, value in result.items():
        print(f"{name:32} {value:>14,.2f}" if isinstance(value, float) else f"{name:32} {value:>14,}")
    if options.json:
        machine = {
            "python": sys.version.split()[0],
            "machine": platform.machine(),
            "torch": torch.__version__,
        }
        options.json.write_text(json.dumps({**result, **machine}, indent=1))


if __name__ == "__main__":
    main()
