"""Tiny label files and trees of them, for the tests of data whose pixels have labels."""

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
    """A PNG of any depth and kind, written by hand: Pillow has no such modes.

    Args:
        path: Where to.
        numbers: (height, width), or (height, width, channels).
        depth: Bits of a channel.
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
    """A label file with one channel of 8 bits."""
    return write(path, Image.fromarray(ids.astype(np.uint8)))


def write_palette(path: Path, ids: Array) -> Path:
    """A label file with a palette whose colours have nothing to do with the ids."""
    image = Image.fromarray(ids.astype(np.uint8)).convert("L")
    indexed = Image.new("P", image.size)
    indexed.putpalette([value for i in range(256) for value in (255 - i, 7 * i % 256, 13 * i % 256)])
    indexed.putdata(list(ids.astype(int).ravel()))
    return write(path, indexed)


def write_red(path: Path, ids: Array) -> Path:
    """A label file with ids in the red channel, something else in the others, and alpha: CARLA's."""
    others = [np.full_like(ids, value) for value in (77, 3, 255)]
    return write(path, Image.fromarray(np.stack([ids, *others], -1).astype(np.uint8)))


def write_colours(path: Path, colours: Array) -> Path:
    """A label file of colours (height, width, 3)."""
    return write(path, Image.fromarray(colours.astype(np.uint8)))


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Path:
    """An image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    return write(path, Image.fromarray(pixels))


def write(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def stripes(values: Any, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Array:
    """The values one after the other, again and again, row by row: all occur if there is room."""
    numbers = np.asarray(values)
    return np.resize(numbers, (size[0] * size[1], *numbers.shape[1:])).reshape(*size, *numbers.shape[1:])
