"""Readers of segmentation data: list the files, then decode source, pool and test set."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Generic, Literal, ParamSpec, get_args

import torch
from torch import Tensor

from ducats.data.decoding import ImageSize, decode_into, parse_size
from ducats.data.domain import AdaptationData, Domain, Images, rows_of, subset_images
from ducats.data.segmentation.file_pairs import SplitFiles
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.label_maps import FileLabelMaps, load_label_maps, make_void_masks
from ducats.data.store import ArrayStore, KeyedPaths
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange

_P = ParamSpec("_P")
VoidPixels = Literal["excluded", "queried"]  # of the pool: excluded beforehand, or may be queried


@dataclass(frozen=True)
class SegmentationListing:
    """Files and label encodings of a segmentation data set; nothing is decoded."""

    source_files: SplitFiles  # images with label files
    pool_files: SplitFiles  # images; label files, if any, are for the oracle only
    test_files: SplitFiles | None  # images with label files
    encodings: tuple[LabelEncoding, LabelEncoding]  # of the label files of source and target
    size: ImageSize  # height and width of target images
    source_size: ImageSize | None = None  # of source images; None for the same
    value_range: ValueRange | None = None  # values of black and white, for more than 8 bits
    void_pixels: VoidPixels = "excluded"  # see ``load_segmentation_data``
    cache: str | Path | None = None  # folder for decoded images and label maps that do not fit in memory
    memory_gb: float | None = None  # memory for both together; None: see ``decode_images``

    def __post_init__(self) -> None:
        if self.void_pixels not in get_args(VoidPixels):
            raise UserError(f"data.params.void_pixels must be excluded or queried, not {self.void_pixels!r}")
        assert self.encodings[0].classes == self.encodings[1].classes

    @property
    def stored_sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Stored height and width of source images, and of target images."""
        return parse_size(self.size if self.source_size is None else self.source_size), parse_size(self.size)


class SegmentationReader(Generic[_P]):
    """A segmentation data set in files: ``list_files`` lists the files, and calling it reads them."""

    def __init__(self, list_files: Callable[_P, SegmentationListing]) -> None:
        self.list_files = list_files
        update_wrapper(self, list_files)
        # As for a data set function.
        self.__annotations__ = {**list_files.__annotations__, "return": AdaptationData}

    def __call__(self, *args: _P.args, **params: _P.kwargs) -> AdaptationData:
        """Read the data set."""
        return load_segmentation_data(self.list_files(*args, **params))


def load_segmentation_data(listing: SegmentationListing) -> AdaptationData:
    """Decode source, pool and test set; the pool's label maps, if listed, become the ``ground_truth``.

    An image is skipped if it or its label file is unreadable.

    If ``void_pixels`` is ``excluded``, pixels that are void in the pool's label files or masks are marked in
    its ``void_masks`` and never queried. If it is ``queried``, they are not marked.
    """
    source_encoding, target_encoding = listing.encodings
    source_size, size = listing.stored_sizes
    store = ArrayStore(listing.cache, listing.memory_gb, requires_range=True)
    # Check all headers before decoding, which may take long.
    source_files, pool_files = (
        files.validated().read_sizes() for files in (listing.source_files, listing.pool_files)
    )
    test_files = None if listing.test_files is None else listing.test_files.validated().read_sizes()
    value_range = listing.value_range
    source = load_labelled(store, *source_files, source_encoding, source_size, value_range)
    pool, ground_truth = _load(store, *pool_files, target_encoding, size, value_range)
    if listing.void_pixels == "excluded":
        masks = _files_of(pool, pool_files[0].masks)
        pool = replace(pool, void_masks=make_void_masks(ground_truth, masks, size))
    test = None
    if test_files is not None:
        test = load_labelled(store, *test_files, target_encoding, size, value_range)
    store.warn_if_on_demand()
    return AdaptationData(source=source, pool=pool, ground_truth=ground_truth, test=test)


def load_labelled(
    store: ArrayStore,
    files: SplitFiles,
    original_sizes: Tensor,
    encoding: LabelEncoding,
    size: ImageSize,
    value_range: ValueRange | None,
) -> Domain:
    """Decode images and their label files, both resized; ``original_sizes`` is int64 (N, 2)."""
    images, label_maps = _load(store, files, original_sizes, encoding, size, value_range)
    assert label_maps is not None
    return Domain(images, label_maps, encoding.classes)


def _load(
    store: ArrayStore,
    files: SplitFiles,
    original_sizes: Tensor,
    encoding: LabelEncoding,
    size: ImageSize,
    value_range: ValueRange | None,
) -> tuple[Images, FileLabelMaps | None]:
    """Decode images, and their label files if there are any; an image is dropped if either is unreadable."""
    images = decode_into(store, files.images, size, value_range=value_range)
    keys = [key for key, _ in files.images]
    images = replace(
        images,
        original_sizes=rows_of(images, keys, original_sizes),
        unreadable=files.unreadable + images.unreadable,
    )
    label_files = _files_of(images, files.labels)
    if label_files is None:
        return images, None
    label_maps = load_label_maps(store, label_files, encoding, size)
    if label_maps.unreadable:
        kept = torch.tensor([row for row, key in enumerate(images.keys) if key not in label_maps.unreadable])
        unreadable = (*images.unreadable, *label_maps.unreadable.values())
        images = replace(subset_images(images, kept), unreadable=unreadable)
    return images, label_maps


def _files_of(images: Images, files: KeyedPaths | None) -> KeyedPaths | None:
    """Return the files that belong to images."""
    kept = frozenset(images.keys)
    return None if files is None else [file for file in files if file[0] in kept]
