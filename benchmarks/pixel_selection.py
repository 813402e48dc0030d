"""Speed of pixel selection: from log alpha on the device to the selected positions, image by image.

    python benchmarks/pixel_selection.py [--device cuda] [--height 1024 --width 2048 --classes 19]
        [--images 20] [--query duc ...] [--unit pixel] [--selected 0.01] [--labelled 0.02] [--out FILE]

Log alpha are smooth random maps; only the selection is timed. Without --query, all queries of the table below
are measured, each with its own unit. Prints milliseconds per image and, on a GPU, the memory that selection
needs in addition to the maps.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.queries import QUERIES
from ducats.acquisition.units import select_in_image
from ducats.data.domain import UNLABELLED
from ducats.settings import Unit
from ducats.utils.randomness import make_generator

# RIPU selects regions; all others are measured on pixels.
DEFAULT_UNITS = dict.fromkeys(("random", "entropy", "margin", "duc", "ripu_points"), "pixel") | {
    "ripu": "region"
}


def main() -> None:
    """Measure, print one line per query, and write JSON if requested."""
    options = parse()
    device = torch.device(options.device)
    units = {
        name: options.unit or DEFAULT_UNITS.get(name, "pixel") for name in options.query or DEFAULT_UNITS
    }
    results = []
    for name, unit in units.items():
        result = measure(name, unit, options, device)
        results.append(result)
        memory = "" if result["memory_mb"] is None else f", {result['memory_mb']:6.0f} MB"
        print(f"{name:12s} by {unit:10s} {result['ms_per_image']:9.1f} ms per image{memory}", flush=True)
    if options.out:
        about = {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **{
                k: getattr(options, k)
                for k in ("height", "width", "classes", "images", "selected", "labelled")
            },
        }
        options.out.write_text(json.dumps({"about": about, "results": results}, indent=1), encoding="utf-8")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--height", type=int, default=1024)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument(
        "--query", action="append", choices=list(QUERIES), help="query to measure; may be repeated"
    )
    parser.add_argument("--unit", choices=["pixel", "region", "superpixel"])
    parser.add_argument("--selected", type=float, default=0.01, help="fraction of pixels to select per image")
    parser.add_argument(
        "--labelled", type=float, default=0.02, help="fraction of pixels that are already labelled"
    )
    parser.add_argument("--out", type=Path, help="JSON output file")
    return parser.parse_args()


def measure(name: str, unit: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return the mean time per image, without the first, and the peak memory in addition to the maps."""
    spec, budget = QUERIES[name], round(options.selected * options.height * options.width)
    seconds, peak, n_selected = 0.0, 0, 0
    for image in range(options.images + 1):
        z, target, pixels = make_inputs(options, image, device)
        memory_before = synchronise(device, reset=True)
        start = time.perf_counter()
        picked = select_in_image(
            spec,
            Unit(unit),  # type: ignore[arg-type]
            z=z if spec.needs else None,
            features=None,
            known_labels=target,
            image=image,
            pixels=pixels,
            budget=budget,
            generator=make_generator(0, "query", image),
        )
        synchronise(device)
        if image > 0:  # the first is the warm-up
            seconds += time.perf_counter() - start
            n_selected += len(picked.position)
            peak = max(
                peak, torch.cuda.max_memory_allocated() - memory_before if device.type == "cuda" else 0
            )
    return {
        "query": name,
        "unit": unit,
        "budget": budget,
        "bought_per_image": n_selected / options.images,
        "ms_per_image": seconds / options.images * 1000,
        "memory_mb": peak / 2**20 if device.type == "cuda" else None,
    }


def make_inputs(
    options: argparse.Namespace, image: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log alpha as from a network of stride 8, a target map with some known labels, and an image."""
    generator, size = make_generator(0, "scene", image), (options.height, options.width)
    # Large shapes plus fine grain: most neighbours agree, but not all.
    shapes, grain = (
        torch.randn(1, options.classes, *(max(2, s // cell) for s in size), generator=generator)
        for cell in (64, 8)
    )
    z = sum(
        weight * F.interpolate(part.to(device), size, mode="bilinear", align_corners=True)[0]
        for part, weight in ((shapes, 3.0), (grain, 0.7))
    )
    is_labelled = torch.rand(size, generator=generator) < options.labelled
    target = torch.where(is_labelled, 0, UNLABELLED).to(torch.int8)
    pixels = torch.randint(0, 256, (1, 3, max(2, size[0] // 16), max(2, size[1] // 16)), generator=generator)
    photo = F.interpolate(pixels.float(), size, mode="bilinear").to(torch.uint8)[0]
    assert isinstance(z, Tensor)
    return z, target.to(device), photo


def synchronise(device: torch.device, *, reset: bool = False) -> int:
    """Synchronise and return the allocated bytes; optionally reset the peak counter."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


if __name__ == "__main__":
    main()
