"""Label maps from label files: classes by index, in the size of the images; and at hand in their own size."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.decode import Size, shown_size, sides
from ducats.data.maps.codes import Codes
from ducats.data.maps.raw import is_void, read_ids, read_mask, resize
from ducats.data.store import FileArrays, Files, Recipe, Room, each

Array = NDArray[Any]

_RECIPE = 1  # raise it when the same files would give other maps: old caches are then left alone
_WHAT = "label maps"
_AT_ONCE = 16  # maps looked at together where all are gone through
_MASKS, _MASKS_REMEDY = "masks", "remove or replace them"


class LabelMaps:
    """The label maps of some images; satisfies ``domain.Maps``.

    They are squashed as their images are, to the nearest pixel, and never to a mixture of two classes.
    """

    ndim = 3

    def __init__(self, held: Tensor | FileArrays, files: Sequence[Path], codes: Codes) -> None:
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
        """One map in its file's own size: ``(height, width)``.

        Raises:
            UserError: The file was there when the maps were made, and cannot be read now.
        """
        return _original(self.files[index], self.codes)

    def __repr__(self) -> str:
        return f"LabelMaps({len(self)} of {tuple(self.shape[1:])}, {len(self.codes.classes)} classes)"


def hold_maps(room: Room, files: Files, codes: Codes, size: Size) -> LabelMaps:
    """Decode label files, wherever there is room for their maps.

    Args:
        room: Where they go.
        files: Keys and paths.
        codes: What the numbers in them mean.
        size: Height and width in pixels.

    Raises:
        UserError: Some cannot be read, or hold ids that nobody knows: which, and how many pixels of each.
    """
    height, width = sides(size)
    recipe = Recipe(
        read=lambda path: resize(_encoded(path, codes), height, width),
        begin=shown_size,
        shape=(height, width),
        dtype=codes.dtype,
        what=_WHAT,
        identity=["maps", _RECIPE, codes.coded, codes.meanings],
        remedy=codes.remedy,
    )
    return LabelMaps(room.hold(files, recipe), [path for _, path in files], codes)


class Masks:
    """Which pixels have no class, and nothing else about them: a bit each; satisfies ``domain.Maps``.

    A pool may have them, as it may not have the label maps that they were made from.
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
        """One mask in its file's own size: ``(height, width)``."""
        return self._original(index)


def masks_of(maps: LabelMaps | None, files: Files | None, size: Size) -> Masks | None:
    """The pixels that have no class: by their label maps, or by files that are not zero there, or by both.

    Raises:
        UserError: Some files cannot be read.
    """
    height, width = sides(size)
    stored: list[Callable[[slice], Tensor]] = []
    originals: list[Callable[[int], Tensor]] = []
    if maps is not None:
        labels, codes = maps.files, maps.codes  # not the maps themselves: a pool must not lead to them
        stored.append(lambda some: is_void(maps[some]))
        originals.append(lambda i: is_void(_original(labels[i], codes)))
    if files is not None:
        arrays = FileArrays(files, _mask_recipe(height, width))
        stored.append(lambda some: arrays[some])
        originals.append(lambda i: torch.from_numpy(each(read_mask, [files[i][1]], _MASKS, _MASKS_REMEDY)[0]))
    if not stored:
        return None
    count = len(maps) if maps is not None else len(files or ())
    bits = np.empty((count, height, (width + 7) // 8), np.uint8)
    for start in range(0, count, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        bits[some] = np.packbits(_any([masks(some) for masks in stored]).numpy(), axis=-1)
    return Masks(bits, width, lambda i: _any([mask(i) for mask in originals]))


def _mask_recipe(height: int, width: int) -> Recipe:
    """How a file becomes a mask; read once and packed, so it needs no name of its own."""
    return Recipe(
        read=lambda path: resize(read_mask(path), height, width),
        begin=shown_size,
        shape=(height, width),
        dtype=np.dtype(np.uint8),
        what=_MASKS,
        identity=_MASKS,
        remedy=_MASKS_REMEDY,
    )


def _any(masks: Sequence[Tensor]) -> Tensor:
    """Where at least one is not zero: uint8, 0 or 1."""
    return (torch.stack(list(masks)) != 0).any(0).to(torch.uint8)


def _original(path: Path, codes: Codes) -> Tensor:
    """One label file's map in its own size; an error that names the file if it cannot be read."""
    (found,) = each(partial(_encoded, codes=codes), [path], _WHAT, codes.remedy)
    return torch.from_numpy(found)


def _encoded(path: Path, codes: Codes) -> Array:
    """One label file's classes, in its own size."""
    # Before it is resized: an id that falls between the pixels would pass unseen.
    return codes.encode(read_ids(path, codes.coded))
