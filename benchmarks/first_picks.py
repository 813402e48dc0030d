"""Diversity of the first round of picks of each demo method.

    ducats demo && python benchmarks/first_picks.py [runs/demo]

Prints, for each seed, the number of classes among the picks of the first round, and the mean distance of a
pick to its nearest other pick (Euclidean, in grey levels over all pixels).
"""

import sys
from pathlib import Path

import torch

from ducats.data.digits import digits
from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder


def first_picks(folder: Path, pixels: dict[str, torch.Tensor]) -> tuple[int, float]:
    """Return the number of classes and the mean distance to the nearest other pick."""
    entries = [entry for entry in load_ledger(RunFolder(folder)).entries() if entry.round == 1]
    images = torch.stack([pixels[entry.key] for entry in entries])
    distance = torch.cdist(images, images).fill_diagonal_(float("inf"))
    return len({entry.label for entry in entries}), float(distance.min(dim=1).values.mean())


def main() -> None:
    """Print one line per method."""
    demo_folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    pool = digits().pool
    pixels = dict(zip(pool.keys, pool.pixels[:].float().flatten(1), strict=True))
    for method in ("random", "duc", "ducats"):
        results = [
            first_picks(folder, pixels) for folder in sorted(demo_folder.glob(f"digits-{method}-{'?' * 8}"))
        ]
        if not results:
            sys.exit(f"{demo_folder} has no runs of {method}; run `ducats demo` first, or pass its folder")
        classes, distances = zip(*results, strict=True)
        mean = sum(distances) / len(distances)
        print(f"{method:12s} classes {list(classes)}, mean distance to the nearest other pick {mean:.0f}")


if __name__ == "__main__":
    main()
