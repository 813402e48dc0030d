"""Write tiny synthetic images and label files for tests of segmentation data."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

AnyArray = NDArray[Any]
HEIGHT, WIDTH = 8, 16


def write_png(path: Path, values: AnyArray, depth: int, colour_type: int) -> Path:
    """Write a PNG of any bit depth and colour type, also those without a Pillow mode.

    Args:
        values: (height, width) or (height, width, channels).
        depth: Bits per channel.
        colour_type: 0 grey, 2 RGB, 4 grey with alpha, 6 RGB with alpha.
    """
    height, width = values.shape[:2]
    rows = []
    for row in values.reshape(height, -1):
        bits = (row[:, None] >> np.arange(depth)[::-1]) & 1
        rows.append(b"\0" + np.packbits(bits.astype(np.uint8).ravel()).tobytes())
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
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


def write_ids(path: Path, ids: AnyArray) -> Path:
    """Write a label file with one 8-bit channel."""
    return save_image(path, Image.fromarray(ids.astype(np.uint8)))


def write_palette(path: Path, ids: AnyArray) -> Path:
    """Write a label file with a palette whose colours are unrelated to the ids."""
    image = Image.fromarray(ids.astype(np.uint8)).convert("L")
    indexed = Image.new("P", image.size)
    indexed.putpalette([value for i in range(256) for value in (255 - i, 7 * i % 256, 13 * i % 256)])
    indexed.putdata(list(ids.astype(int).ravel()))
    return save_image(path, indexed)


def write_red(path: Path, ids: AnyArray) -> Path:
    """Write a label file like CARLA's: ids in the red channel, other values in the rest, and alpha."""
    others = [np.full_like(ids, value) for value in (77, 3, 255)]
    return save_image(path, Image.fromarray(np.stack([ids, *others], -1).astype(np.uint8)))


def write_colours(path: Path, colours: AnyArray) -> Path:
    """Write a label file of colours (height, width, 3)."""
    return save_image(path, Image.fromarray(colours.astype(np.uint8)))


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Path:
    """Write an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    return save_image(path, Image.fromarray(pixels))


def save_image(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def repeat_values(values: Any, size: tuple[int, int] = (HEIGHT, WIDTH)) -> AnyArray:
    """Fill an array with the values, repeated row by row."""
    array = np.asarray(values)
    return np.resize(array, (size[0] * size[1], *array.shape[1:])).reshape(*size, *array.shape[1:])
