"""A tiny segmentation data set in folders, as a user would have it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASS_LIST = "# label ids\n0 road\n3 car\n7 sky\n255 void\n"
IDS = {"road": 0, "car": 3, "sky": 7, "void": 255}
SIZE = (20, 30)  # of the files; stored images are smaller
SMALL_RUN_OPTIONS = (
    *("--set", "model={name: small_fcn, params: {width: 4, dilations: [1]}, evidence: exp_at_most_10}"),
    *("--set", "data.params.size=[12, 16]", "--set", "train.steps_per_epoch=3", "--set", "train.lr=0.02"),
    *("--epochs", "3", "--rounds", "2", "--device", "cpu"),
)


def scene(seed: int, size: tuple[int, int] = SIZE) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Make an image and its ids: sky above, road below, a car, and a void strip at the bottom."""
    random = np.random.default_rng(seed)
    height, width = size
    ids = np.full(size, 7, np.uint8)
    ids[height // 2 :] = 0
    left = int(random.integers(0, width - 8))
    ids[height // 2 - 3 : height // 2 + 3, left : left + 8] = 3
    ids[-2:] = 255
    colours = np.zeros((256, 3), np.uint8)
    colours[[0, 3, 7, 255]] = (90, 90, 90), (200, 30, 30), (120, 160, 230), (10, 10, 10)
    noise = random.integers(-25, 26, (*size, 3))
    return (colours[ids] + noise).clip(0, 255).astype(np.uint8), ids


def write_image(
    root: Path, seed: int, name: str = "", size: tuple[int, int] = SIZE, *, labelled: bool = True
) -> None:
    """Write one image and its label file."""
    pixels, ids = scene(seed, size)
    name = name or f"{seed:03d}"
    for folder, array in (("images", pixels), *([("labels", ids)] if labelled else [])):
        path = root / folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


def write_tree(root: Path) -> Path:
    """Write source, target and test with four labelled images each, and the class list."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text(CLASS_LIST)
    for start, role in ((0, "source"), (100, "target"), (200, "test")):
        for number in range(4):
            write_image(root / role, start + number)
    return root


def folder_options(root: Path, *, test: bool = True) -> list[Any]:
    """Return the command-line options for the data set."""
    given: list[Any] = ["-c", "segmentation", "--source", root / "source", "--target", root / "target"]
    return [
        *given,
        *(["--test", root / "test"] if test else []),
        "--classes",
        root / "classes.txt",
        *SMALL_RUN_OPTIONS,
    ]
