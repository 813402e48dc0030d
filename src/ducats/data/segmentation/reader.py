"""Readers of segmentation data: list the files, then decode source, pool and test set."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Generic, Literal, ParamSpec, get_args

from torch import Tensor

from ducats.data.decoding import ImageSize, decode_into, parse_size
from ducats.data.domain import AdaptationData, Domain, Images
from ducats.data.segmentation.file_pairs import SplitFiles
from ducats.data.segmentation.label_encoding import LabelEncoding
from ducats.data.segmentation.label_maps import FileLabelMaps, load_label_maps, make_void_masks
from ducats.data.store import ArrayStore
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

    If ``void_pixels`` is ``excluded``, pixels that are void in the pool's label files or masks are marked in
    its ``void_masks`` and never queried. If it is ``queried``, they are not marked.
    """
    source_encoding, target_encoding = listing.encodings
    source_size, size = listing.stored_sizes
    store = ArrayStore(listing.cache, listing.memory_gb)
    # Check all headers before decoding, which may take long.
    file_sets = [
        None if files is None else files.validated()
        for files in (listing.source_files, listing.pool_files, listing.test_files)
    ]
    original_sizes = [None if files is None else files.read_sizes() for files in file_sets]
    value_range = listing.value_range
    source = load_labelled(
        store, listing.source_files, source_encoding, source_size, original_sizes[0], value_range
    )
    pool = _load_images(store, listing.pool_files, size, original_sizes[1], value_range)
    ground_truth: FileLabelMaps | None = None
    if listing.pool_files.labels is not None:
        ground_truth = load_label_maps(store, listing.pool_files.labels, target_encoding, size)
    if listing.void_pixels == "excluded":
        pool = replace(pool, void_masks=make_void_masks(ground_truth, listing.pool_files.masks, size))
    test = None
    if listing.test_files is not None:
        test = load_labelled(store, listing.test_files, target_encoding, size, original_sizes[2], value_range)
    store.warn_if_on_demand()
    return AdaptationData(source=source, pool=pool, ground_truth=ground_truth, test=test)


def load_labelled(
    store: ArrayStore,
    files: SplitFiles,
    encoding: LabelEncoding,
    size: ImageSize,
    original_sizes: Tensor | None,
    value_range: ValueRange | None,
) -> Domain:
    """Decode images and their label files, both resized; ``original_sizes`` is int64 (N, 2)."""
    assert files.labels is not None
    return Domain(
        _load_images(store, files, size, original_sizes, value_range),
        load_label_maps(store, files.labels, encoding, size),
        encoding.classes,
    )


def _load_images(
    store: ArrayStore,
    files: SplitFiles,
    size: ImageSize,
    original_sizes: Tensor | None,
    value_range: ValueRange | None,
) -> Images:
    images = decode_into(store, files.images, size, value_range=value_range)
    return replace(images, original_sizes=original_sizes)
