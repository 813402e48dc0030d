"""Decoding of image files to pixel arrays."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ducats.data.store import SPARE_GB, Failure, Files, Recipe, Room, allowance, attempts, each
from ducats.domain import Images
from ducats.errors import UserError
from ducats.pictures import File, as_shown, shown_size

Array = NDArray[np.uint8]
Size = int | Sequence[int]  # the side of a square, or height and width

_MODES = {1: "L", 3: "RGB"}
_RECIPE = 1  # increase it when decoding changes: old caches are then ignored
_REMEDY = "remove or replace them; `ducats doctor` lists them all"


def decode(
    files: Files,
    size: Size,
    *,
    channels: int = 3,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Images:
    """Decode images as a viewer shows them and resize them to one size, in the given order.

    The EXIF orientation is applied, transparency is composited on white, 16 bits are reduced to 8, and only
    the first frame of an animation is read. Images are resized with Pillow's bicubic filter, ignoring the
    aspect ratio, as in the published settings.

    Args:
        size: Height and width in pixels; one number for a square.
        channels: 3 for RGB, 1 for grey.
        cache: Folder for pixels that do not fit in memory. A later call with the same keys, paths, file
            sizes, modification times and size reuses them. If None, a temporary file is used, which is
            deleted when the process ends.
        memory_gb: Gigabytes (2**30 bytes) of pixels to hold in memory; None for half of the free memory. Any
            others go to a memory-mapped file, which is read-only: writing to these pixels crashes the
            process. If the disk has no room either, images are decoded on each access.

    Raises:
        UserError: Some files are not readable images.
    """
    room = Room(cache, memory_gb)
    images = decode_into(room, files, size, channels=channels)
    room.warn()
    return images


def decode_each(
    parts: Sequence[Files], size: Size, *, cache: str | Path | None, memory_gb: float | None
) -> list[Images]:
    """Decode several sets of RGB images that share one memory budget, first come, first served."""
    room = Room(cache, memory_gb)
    decoded = [decode_into(room, files, size) for files in parts]
    room.warn()
    return decoded


def decode_into(room: Room, files: Files, size: Size, *, channels: int = 3) -> Images:
    """Decode images into a store that other arrays share, without a warning."""
    pixels = room.hold(files, recipe(size, channels))
    return Images(tuple(key for key, _ in files), pixels, tuple(path for _, path in files))


def gigabytes(count: int, size: Size, channels: int = 3) -> float:
    """Return the gigabytes that ``count`` decoded images take.

    >>> gigabytes(2**14, 256)
    3.0
    """
    return recipe(size, channels).gigabytes(count)


def sides(size: Size) -> tuple[int, int]:
    """Return height and width from one number for both, or from two.

    >>> sides(8), sides([4, 6])
    ((8, 8), (4, 6))
    """
    numbers = (size, size) if isinstance(size, int) else tuple(size)
    if len(numbers) != 2 or not all(isinstance(number, int) for number in numbers):
        raise UserError(f"size must be a whole number of pixels or [height, width], not {size!r}")
    height, width = numbers
    if min(numbers) < 1:
        one = isinstance(size, int)
        raise UserError(
            f"images cannot be {width if one else f'{height} x {width}'} pixels {'wide' if one else 'large'};"
            " give a size of 1 or more"
        )
    return height, width


def find_unreadable(files: Files) -> list[tuple[Path, str]]:
    """Return every file that cannot be decoded, with the reason, in the given order."""
    paths = [path for _, path in files]
    # bool() discards each image: only the failures are needed.
    outcomes = attempts(lambda path: bool(as_shown(path)), paths)
    return [
        (path, outcome.reason)
        for path, outcome in zip(paths, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]


def aspects(files: Sequence[Path]) -> Tensor:
    """Read width / height of each image as displayed, from the file headers: float32 (N,)."""
    found = each(shown_size, files, "images", _REMEDY)
    return torch.tensor([width / height for height, width in found], dtype=torch.float32)


def sizes(files: Sequence[Path], what: str = "images") -> Tensor:
    """Read height and width of each image as displayed, from the file headers: int64 (N, 2)."""
    return torch.tensor(each(shown_size, files, what, _REMEDY), dtype=torch.int64).reshape(-1, 2)


def recipe(size: Size, channels: int = 3) -> Recipe:
    """Return the recipe for decoding images of this size."""
    height, width = sides(size)
    if channels not in _MODES:
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    return Recipe(
        read=partial(_array, height=height, width=width, channels=channels),
        begin=shown_size,
        shape=(channels, height, width),
        dtype=np.dtype(np.uint8),
        what="images",
        identity=_RECIPE,
        remedy=_REMEDY,
    )


def decode_bytes(data: bytes, size: Size, channels: int = 3) -> Array:
    """Decode one image from the contents of its file: uint8 (channels, height, width)."""
    height, width = sides(size)
    return _array(BytesIO(data), height, width, channels)


def _array(file: File, height: int, width: int, channels: int) -> Array:
    """Decode and resize one image: uint8 (channels, height, width)."""
    image = as_shown(file).convert(_MODES[channels])
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels: Array = np.asarray(image).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1)


__all__ = [
    "SPARE_GB",
    "Size",
    "allowance",
    "aspects",
    "decode",
    "decode_bytes",
    "decode_each",
    "decode_into",
    "find_unreadable",
    "gigabytes",
    "recipe",
    "shown_size",
    "sides",
    "sizes",
]
