"""Decoding of image files to pixel arrays."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ducats.data.domain import Images, UnreadableFile, subset_images
from ducats.data.store import (
    ArrayStore,
    Decoder,
    KeyedPaths,
    ReadFailure,
    map_files,
    try_files,
    unreadable_message,
)
from ducats.settings import Interpolation
from ducats.utils.errors import UserError
from ducats.utils.image_files import ImageFile, ValueRange, check_image, displayed_size, load_image

_PixelArray = NDArray[np.uint8]
ImageSize = int | Sequence[int]  # the side of a square, or height and width

_PIL_MODES = {1: "L", 3: "RGB"}
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_DECODER_VERSION = 2  # increase it when decoding changes: old caches are then ignored
_REMEDY = "remove or replace them; `ducats doctor` lists them all"


def decode_images(
    files: KeyedPaths,
    size: ImageSize,
    *,
    channels: int = 3,
    value_range: ValueRange | None = None,
    cache: str | Path | None = None,
    memory_gb: float | None = None,
) -> Images:
    """Decode images as a viewer shows them and resize them to one size, in the given order.

    The EXIF orientation is applied, transparency is composited on white, and only the first frame of an
    animation is read. Images are resized with Pillow's bicubic filter, ignoring the aspect ratio, as in the
    published settings. Files that cannot be read are skipped, and listed in ``Images.unreadable``.

    Args:
        size: Height and width in pixels; one number for a square.
        channels: 3 for RGB, 1 for grey.
        value_range: The values of black and white in images with more than 8 bits per value.
        cache: Folder for pixels that do not fit in memory. A later call with the same keys, paths, file
            sizes, modification times and size reuses them. If None, a temporary file is used, which is
            deleted when the process ends.
        memory_gb: Gigabytes (2**30 bytes) of pixels to hold in memory; None for half of the free memory. Any
            others go to a memory-mapped file, which is read-only: writing to these pixels crashes the
            process. If the disk has no room either, images are decoded on each access.
    """
    store = ArrayStore(cache, memory_gb)
    images = decode_into(store, files, size, channels=channels, value_range=value_range)
    store.warn_if_on_demand()
    return images


def with_bilinear_pixels(images: Images, store: ArrayStore) -> Images:
    """Return the images with a second version of their pixels, resized with a bilinear filter."""
    if images.files is None:
        raise UserError("only images from files can be resized with another filter")
    channels, *size = images.pixels.shape[1:]
    decoder = image_decoder(size, channels, images.value_range, "bilinear")
    decoded = store.load(list(zip(images.keys, images.files, strict=True)), decoder)
    if decoded.failures:  # readable a moment ago
        unreadable = [UnreadableFile(images.files[row], reason) for row, reason in decoded.failures.items()]
        raise UserError(unreadable_message(unreadable, len(images), decoder.noun, decoder.remedy))
    store.warn_if_on_demand()
    return replace(images, bilinear_pixels=decoded.arrays)


def decode_image_sets(
    file_sets: Sequence[KeyedPaths],
    size: ImageSize,
    *,
    value_range: ValueRange | None = None,
    cache: str | Path | None,
    memory_gb: float | None,
) -> list[Images]:
    """Decode the RGB images of a run: several sets that share one memory budget, first come, first served.

    Unlike in ``decode_images``, an image that needs a range and has none is an error.
    """
    store = ArrayStore(cache, memory_gb, requires_range=True)
    decoded = [decode_into(store, files, size, value_range=value_range) for files in file_sets]
    store.warn_if_on_demand()
    return decoded


def decode_into(
    store: ArrayStore,
    files: KeyedPaths,
    size: ImageSize,
    *,
    channels: int = 3,
    value_range: ValueRange | None = None,
) -> Images:
    """Decode images into a store that other arrays share, without a warning."""
    decoded = store.load(files, image_decoder(size, channels, value_range))
    keys, paths = tuple(key for key, _ in files), tuple(path for _, path in files)
    images = Images(keys, decoded.arrays, paths, value_range=value_range)
    if not decoded.failures:
        return images
    unreadable = tuple(UnreadableFile(files[row][1], reason) for row, reason in decoded.failures.items())
    return replace(subset_images(images, decoded.readable_rows()), unreadable=unreadable)


def pixels_gb(count: int, size: ImageSize, channels: int = 3) -> float:
    """Return the gigabytes that ``count`` decoded images take.

    >>> pixels_gb(2**14, 256)
    3.0
    """
    return image_decoder(size, channels).gigabytes(count)


def parse_size(size: ImageSize) -> tuple[int, int]:
    """Return height and width from one number for both, or from two.

    >>> parse_size(8), parse_size([4, 6])
    ((8, 8), (4, 6))
    """
    numbers = (size, size) if isinstance(size, int) else tuple(size)
    if len(numbers) != 2 or not all(isinstance(number, int) for number in numbers):
        raise UserError(f"size must be a whole number of pixels or [height, width], not {size!r}")
    height, width = numbers
    if min(numbers) < 1:
        is_square = isinstance(size, int)
        raise UserError(
            f"images cannot be {width if is_square else f'{height} x {width}'} pixels"
            f" {'wide' if is_square else 'large'}; give a size of 1 or more"
        )
    return height, width


def parse_value_range(value_range: Sequence[float] | None) -> ValueRange | None:
    """Return the values of black and white, as set by ``data.params.range``.

    >>> parse_value_range([0, 4095]), parse_value_range(None)
    ((0, 4095), None)
    """
    if value_range is None:
        return None
    if not is_value_range(value_range):
        raise UserError(
            f"data.params.range is {value_range!r}; give the values of black and white, such as [0, 4095]"
        )
    black, white = value_range
    return black, white


def is_value_range(given: Any) -> bool:
    """Return whether this is a pair of increasing numbers."""
    is_pair = (
        isinstance(given, list | tuple) and [type(value) in (int, float) for value in given] == [True] * 2
    )
    return is_pair and -math.inf < given[0] < given[1] < math.inf


def find_unreadable(paths: Sequence[Path], value_range: ValueRange | None = None) -> list[tuple[Path, str]]:
    """Return every file that cannot be decoded, with the reason, in the given order."""
    # bool() discards each image: only the failures are needed.
    outcomes = try_files(lambda path: bool(load_image(path, value_range)), paths)
    return [
        (path, outcome.reason)
        for path, outcome in zip(paths, outcomes, strict=True)
        if isinstance(outcome, ReadFailure)
    ]


def read_aspect_ratios(files: Sequence[Path]) -> Tensor:
    """Read width / height of each image as displayed, from the file headers: float32 (N,)."""
    sizes = map_files(displayed_size, files, "images", _REMEDY)
    return torch.tensor([width / height for height, width in sizes], dtype=torch.float32)


def read_image_sizes(files: Sequence[Path], noun: str = "images") -> Tensor:
    """Read height and width of each image as displayed, from the file headers: int64 (N, 2)."""
    return torch.tensor(map_files(displayed_size, files, noun, _REMEDY), dtype=torch.int64).reshape(-1, 2)


def image_decoder(
    size: ImageSize,
    channels: int = 3,
    value_range: ValueRange | None = None,
    interpolation: Interpolation = "bicubic",
) -> Decoder:
    """Return the decoder of images of this size."""
    height, width = parse_size(size)
    if channels not in _PIL_MODES:
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    return Decoder(
        read=partial(
            _decode_image,
            size=(height, width),
            channels=channels,
            value_range=value_range,
            interpolation=interpolation,
        ),
        check=partial(check_image, value_range=value_range),
        shape=(channels, height, width),
        dtype=np.dtype(np.uint8),
        noun="images",
        cache_key=(_DECODER_VERSION, value_range, *([] if interpolation == "bicubic" else [interpolation])),
        remedy=_REMEDY,
    )


def decode_image_bytes(
    data: bytes,
    size: ImageSize,
    channels: int = 3,
    value_range: ValueRange | None = None,
    interpolation: Interpolation = "bicubic",
) -> _PixelArray:
    """Decode one image from the contents of its file: uint8 (channels, height, width)."""
    return _decode_image(BytesIO(data), parse_size(size), channels, value_range, interpolation)


def _decode_image(
    file: ImageFile,
    size: tuple[int, int],
    channels: int,
    value_range: ValueRange | None,
    interpolation: Interpolation,
) -> _PixelArray:
    """Decode and resize one image: uint8 (channels, height, width)."""
    return resize_image(load_image(file, value_range), size, channels, interpolation)


def resize_image(
    image: Image.Image, size: tuple[int, int], channels: int = 3, interpolation: Interpolation = "bicubic"
) -> _PixelArray:
    """Resize an image, ignoring its aspect ratio: uint8 (channels, height, width)."""
    height, width = size
    image = image.convert(_PIL_MODES[channels]).resize((width, height), _RESAMPLING[interpolation])
    pixels: _PixelArray = np.asarray(image).reshape(height, width, channels)
    return pixels.transpose(2, 0, 1)
