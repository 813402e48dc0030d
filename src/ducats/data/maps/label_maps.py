"""Label maps decoded from label files, at the size of the stored images and at their original size."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.decoding import ImageSize, displayed_size, parse_size
from ducats.data.maps.codes import Codes
from ducats.data.maps.raw import is_void, read_ids, read_mask, resize
from ducats.data.store import ArrayStore, Decoder, KeyedPaths, LazyFileArrays, map_files

Array = NDArray[Any]

_RECIPE = 1  # increment when decoding changes, to invalidate caches
_WHAT = "label maps"
_AT_ONCE = 16  # maps per chunk when all maps are processed
_MASKS, _MASKS_REMEDY = "masks", "remove or replace them"


class LabelMaps:
    """Label maps of a set of images; implements ``domain.Maps``.

    They are resized like their images, but to the nearest pixel, so classes are never mixed.
    """

    ndim = 3

    def __init__(self, held: Tensor | LazyFileArrays, files: Sequence[Path], codes: Codes) -> None:
        self.shape: torch.Size = held.shape
        self.dtype: torch.dtype = held.dtype
        self.files = tuple(files)
        self.codes = codes
        self._held = held

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        return self._held[index]

    def original(self, index: int) -> Tensor:
        """Return one label map at the original size of its file: ``(height, width)``.

        Raises:
            UserError: The file can no longer be read.
        """
        return _original(self.files[index], self.codes)

    def __repr__(self) -> str:
        return f"LabelMaps({len(self)} of {tuple(self.shape[1:])}, {len(self.codes.classes)} classes)"


def hold_maps(room: ArrayStore, files: KeyedPaths, codes: Codes, size: ImageSize) -> LabelMaps:
    """Decode label files into memory or a cache file.

    Args:
        files: Keys and paths.
        size: Height and width to resize the label maps to.

    Raises:
        UserError: Some files cannot be read or contain unknown ids.
    """
    height, width = parse_size(size)
    recipe = Decoder(
        read=lambda path: resize(_encoded(path, codes), height, width),
        check=displayed_size,
        shape=(height, width),
        dtype=codes.dtype,
        noun=_WHAT,
        cache_key=["maps", _RECIPE, codes.coded, codes.meanings],
        remedy=codes.remedy,
    )
    return LabelMaps(room.load(files, recipe), [path for _, path in files], codes)


class Masks:
    """Void masks, stored as one bit per pixel; implements ``domain.Maps``.

    A pool may have void masks, but never the label maps they were made from.
    """

    dtype = torch.uint8
    ndim = 3

    def __init__(self, bits: Array, width: int, original: Callable[[int], Tensor]) -> None:
        self.shape = torch.Size((*bits.shape[:2], width))
        self._bits = bits
        self._original = original

    def __len__(self) -> int:
        return len(self._bits)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        rows = torch.arange(len(self))[index]
        bits = self._bits[rows.flatten().numpy()]
        masks = np.unpackbits(bits, axis=-1, count=self.shape[-1])
        return torch.from_numpy(masks).view(*rows.shape, *self.shape[1:])

    def original(self, index: int) -> Tensor:
        """Return one mask at the original size of its file: ``(height, width)``."""
        return self._original(index)


def masks_of(maps: LabelMaps | None, files: KeyedPaths | None, size: ImageSize) -> Masks | None:
    """Make void masks from label maps, from mask files (non-zero is void), or from both.

    Raises:
        UserError: Some files cannot be read.
    """
    height, width = parse_size(size)
    stored: list[Callable[[slice], Tensor]] = []
    originals: list[Callable[[int], Tensor]] = []
    if maps is not None:
        labels, codes = maps.files, maps.codes  # not the maps: a pool must not give access to labels
        stored.append(lambda some: is_void(maps[some]))
        originals.append(lambda i: is_void(_original(labels[i], codes)))
    if files is not None:
        arrays = LazyFileArrays(files, _mask_recipe(height, width))
        stored.append(lambda some: arrays[some])
        originals.append(
            lambda i: torch.from_numpy(map_files(read_mask, [files[i][1]], _MASKS, _MASKS_REMEDY)[0])
        )
    if not stored:
        return None
    count = len(maps) if maps is not None else len(files or ())
    bits = np.empty((count, height, (width + 7) // 8), np.uint8)
    for start in range(0, count, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        bits[some] = np.packbits(_any([masks(some) for masks in stored]).numpy(), axis=-1)
    return Masks(bits, width, lambda i: _any([mask(i) for mask in originals]))


def _mask_recipe(height: int, width: int) -> Decoder:
    """Return the recipe for masks. They are read once and packed, so the identity need not be unique."""
    return Decoder(
        read=lambda path: resize(read_mask(path), height, width),
        check=displayed_size,
        shape=(height, width),
        dtype=np.dtype(np.uint8),
        noun=_MASKS,
        cache_key=_MASKS,
        remedy=_MASKS_REMEDY,
    )


def _any(masks: Sequence[Tensor]) -> Tensor:
    """Return where at least one mask is non-zero: uint8, 0 or 1."""
    return (torch.stack(list(masks)) != 0).any(0).to(torch.uint8)


def _original(path: Path, codes: Codes) -> Tensor:
    """Return the label map of one file at its original size. Errors name the file."""
    (found,) = map_files(partial(_encoded, codes=codes), [path], _WHAT, codes.remedy)
    return torch.from_numpy(found)


def _encoded(path: Path, codes: Codes) -> Array:
    # Encode before resizing: otherwise an unknown id could be dropped by resizing and go unnoticed.
    return codes.encode(read_ids(path, codes.coded))
