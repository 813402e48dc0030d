"""Write tiny synthetic images and label files for tests of segmentation data."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
HEIGHT, WIDTH = 8, 16


def write_png(path: Path, numbers: Array, depth: int, kind: int) -> Path:
    """Write a PNG of any bit depth and colour type, also those without a Pillow mode.

    Args:
        numbers: (height, width) or (height, width, channels).
        depth: Bits per channel.
        kind: 0 grey, 2 RGB, 4 grey with alpha, 6 RGB with alpha.
    """
    height, width = numbers.shape[:2]
    rows = []
    for row in numbers.reshape(height, -1):
        bits = (row[:, None] >> np.arange(depth)[::-1]) & 1
        rows.append(b"\0" + np.packbits(bits.astype(np.uint8).ravel()).tobytes())
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
    )
    return path


def write_ids(path: Path, ids: Array) -> Path:
    """Write a label file with one 8-bit channel."""
    return write(path, Image.fromarray(ids.astype(np.uint8)))


def write_palette(path: Path, ids: Array) -> Path:
    """Write a label file with a palette whose colours are unrelated to the ids."""
    image = Image.fromarray(ids.astype(np.uint8)).convert("L")
    indexed = Image.new("P", image.size)
    indexed.putpalette([value for i in range(256) for value in (255 - i, 7 * i % 256, 13 * i % 256)])
    indexed.putdata(list(ids.astype(int).ravel()))
    return write(path, indexed)


def write_red(path: Path, ids: Array) -> Path:
    """Write a label file like CARLA's: ids in the red channel, other values in the rest, and alpha."""
    others = [np.full_like(ids, value) for value in (77, 3, 255)]
    return write(path, Image.fromarray(np.stack([ids, *others], -1).astype(np.uint8)))


def write_colours(path: Path, colours: Array) -> Path:
    """Write a label file of colours (height, width, 3)."""
    return write(path, Image.fromarray(colours.astype(np.uint8)))


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Path:
    """Write an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    return write(path, Image.fromarray(pixels))


def write(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def stripes(values: Any, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Array:
    """Fill an array with the values, repeated row by row."""
    numbers = np.asarray(values)
    return np.resize(numbers, (size[0] * size[1], *numbers.shape[1:])).reshape(*size, *numbers.shape[1:])
