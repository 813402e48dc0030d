"""Label maps decoded from label files, at the size of the stored images and at their original size."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.decoding import ImageSize, parse_size
from ducats.data.domain import Indexable, Subset, UnreadableFile
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.label_files import read_ids, read_mask, resize_label_map, void_mask
from ducats.data.store import ArrayStore, Decoder, KeyedPaths, LazyFileArrays, map_files
from ducats.utils.image_files import displayed_size

_Array = NDArray[Any]

_DECODER_VERSION = 1  # increment when decoding changes, to invalidate caches
_FILE_KIND = "label maps"
_MAPS_PER_CHUNK = 16  # maps per chunk when all maps are processed
_MASK_FILE_KIND, _MASK_ADVICE = "masks", "remove or replace them"


class FileLabelMaps:
    """Label maps of a set of images; implements ``domain.LabelMaps``.

    They are resized like their images, but to the nearest pixel, so classes are never mixed.
    """

    ndim = 3

    def __init__(
        self,
        maps: Indexable,
        files: Sequence[Path],
        encoding: LabelEncoding,
        unreadable: Mapping[str, UnreadableFile] | None = None,
    ) -> None:
        self.shape: torch.Size = maps.shape
        self.dtype: torch.dtype = maps.dtype
        self.files = tuple(files)
        self.encoding = encoding
        self.unreadable = unreadable or {}  # by key
        self._maps = maps

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        return self._maps[index]

    def original(self, index: int) -> Tensor:
        """Return one label map at the original size of its file: ``(height, width)``."""
        return _load_original(self.files[index], self.encoding)

    def __repr__(self) -> str:
        return f"FileLabelMaps({len(self)} of {tuple(self.shape[1:])}, {len(self.encoding.classes)} classes)"


def load_label_maps(
    store: ArrayStore, files: KeyedPaths, encoding: LabelEncoding, size: ImageSize
) -> FileLabelMaps:
    """Decode label files, resized to a height and width, into memory or a cache file.

    Unreadable files are dropped; those with unknown ids raise.
    """
    height, width = parse_size(size)
    decoder = Decoder(
        read=lambda path: resize_label_map(_read_encoded(path, encoding), height, width),
        check=displayed_size,
        shape=(height, width),
        dtype=encoding.dtype,
        noun=_FILE_KIND,
        cache_key=["maps", _DECODER_VERSION, encoding.label_format, encoding.index_by_id],
        remedy=encoding.advice,
    )
    decoded = store.load(files, decoder)
    if not decoded.failures:
        return FileLabelMaps(decoded.arrays, [path for _, path in files], encoding)
    rows = decoded.readable_rows()
    unreadable = {
        files[row][0]: UnreadableFile(files[row][1], reason) for row, reason in decoded.failures.items()
    }
    paths = [files[row][1] for row in rows.tolist()]
    return FileLabelMaps(Subset(decoded.arrays, rows), paths, encoding, unreadable)


class VoidMasks:
    """Void masks, stored as one bit per pixel; implements ``domain.LabelMaps``.

    A pool may have void masks, but never the label maps they were made from.
    """

    dtype = torch.uint8
    ndim = 3

    def __init__(self, bits: _Array, width: int, load_original: Callable[[int], Tensor]) -> None:
        self.shape = torch.Size((*bits.shape[:2], width))
        self._bits = bits
        self._load_original = load_original

    def __len__(self) -> int:
        return len(self._bits)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        indices = torch.arange(len(self))[index]
        bits = self._bits[indices.flatten().numpy()]
        masks = np.unpackbits(bits, axis=-1, count=self.shape[-1])
        return torch.from_numpy(masks).view(*indices.shape, *self.shape[1:])

    def original(self, index: int) -> Tensor:
        """Return one mask at the original size of its file: ``(height, width)``."""
        return self._load_original(index)


def make_void_masks(
    label_maps: FileLabelMaps | None, mask_files: KeyedPaths | None, size: ImageSize
) -> VoidMasks | None:
    """Make void masks from label maps, from mask files (non-zero is void), or from both."""
    height, width = parse_size(size)
    stored_masks: list[Callable[[slice], Tensor]] = []
    original_masks: list[Callable[[int], Tensor]] = []
    if label_maps is not None:
        # Keep files and encoding, not the maps: a pool must not give access to labels.
        label_files, encoding = label_maps.files, label_maps.encoding
        stored_masks.append(lambda chunk: void_mask(label_maps[chunk]))
        original_masks.append(lambda i: void_mask(_load_original(label_files[i], encoding)))
    if mask_files is not None:
        mask_arrays = LazyFileArrays(mask_files, _mask_decoder(height, width))
        stored_masks.append(lambda chunk: mask_arrays[chunk])
        original_masks.append(
            lambda i: torch.from_numpy(
                map_files(read_mask, [mask_files[i][1]], _MASK_FILE_KIND, _MASK_ADVICE)[0]
            )
        )
    if not stored_masks:
        return None
    count = len(label_maps) if label_maps is not None else len(mask_files or ())
    bits = np.empty((count, height, (width + 7) // 8), np.uint8)
    for start in range(0, count, _MAPS_PER_CHUNK):
        chunk = slice(start, start + _MAPS_PER_CHUNK)
        bits[chunk] = np.packbits(_union([get_masks(chunk) for get_masks in stored_masks]).numpy(), axis=-1)
    return VoidMasks(bits, width, lambda i: _union([get_mask(i) for get_mask in original_masks]))


def _mask_decoder(height: int, width: int) -> Decoder:
    """Return the decoder of masks. They are read once and packed, so the cache key need not be unique."""
    return Decoder(
        read=lambda path: resize_label_map(read_mask(path), height, width),
        check=displayed_size,
        shape=(height, width),
        dtype=np.dtype(np.uint8),
        noun=_MASK_FILE_KIND,
        cache_key=_MASK_FILE_KIND,
        remedy=_MASK_ADVICE,
    )


def _union(masks: Sequence[Tensor]) -> Tensor:
    """Return where at least one mask is non-zero: uint8, 0 or 1."""
    return (torch.stack(list(masks)) != 0).any(0).to(torch.uint8)


def _load_original(path: Path, encoding: LabelEncoding) -> Tensor:
    """Return the label map of one file at its original size. Errors name the file."""
    (label_map,) = map_files(partial(_read_encoded, encoding=encoding), [path], _FILE_KIND, encoding.advice)
    return torch.from_numpy(label_map)


def _read_encoded(path: Path, encoding: LabelEncoding) -> _Array:
    # Encode before resizing: otherwise an unknown id could be dropped by resizing and go unnoticed.
    return encoding.encode(read_ids(path, encoding.label_format))
