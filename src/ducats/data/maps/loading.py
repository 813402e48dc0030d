"""Readers of segmentation data: list the files, then decode source, pool and test set."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Generic, Literal, ParamSpec, get_args

from torch import Tensor

from ducats.data.decoding import ImageSize, decode_into, parse_size
from ducats.data.maps.codes import Codes
from ducats.data.maps.label_maps import LabelMaps, hold_maps, masks_of
from ducats.data.maps.pairs import Part
from ducats.data.store import ArrayStore
from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError

P = ParamSpec("P")
Void = Literal["known", "asked"]  # void pixels of the pool are excluded beforehand, or may be queried


@dataclass(frozen=True)
class Listing:
    """Files and label encodings of a segmentation data set; nothing is decoded."""

    source: Part  # images with label files
    pool: Part  # images; label files, if any, are for the oracle only
    test: Part | None  # images with label files
    codes: tuple[Codes, Codes]  # of the label files of source and target
    size: ImageSize  # height and width of target images
    source_size: ImageSize | None = None  # of source images; None for the same
    void: Void = "known"  # see ``load_maps``
    cache: str | Path | None = None  # folder for decoded images and label maps that do not fit in memory
    memory_gb: float | None = None  # memory for both together; None: see ``decode``

    def __post_init__(self) -> None:
        if self.void not in get_args(Void):
            raise UserError(f"data.params.void must be known or asked, not {self.void!r}")
        assert self.codes[0].classes == self.codes[1].classes

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Stored height and width of source images, and of target images."""
        return parse_size(self.size if self.source_size is None else self.source_size), parse_size(self.size)


class Reader(Generic[P]):
    """A segmentation data set in files: ``listing`` lists the files, and calling it reads them."""

    def __init__(self, listing: Callable[P, Listing]) -> None:
        self.listing = listing
        update_wrapper(self, listing)
        self.__annotations__ = {**listing.__annotations__, "return": Shift}  # as for a data set function

    def __call__(self, *given: P.args, **params: P.kwargs) -> Shift:
        """Read the data set."""
        return load_maps(self.listing(*given, **params))


def load_maps(listing: Listing) -> Shift:
    """Decode source, pool and test set; the pool's label maps, if listed, become the ``truth``.

    If ``void`` is ``known``, pixels that are void in the pool's label files or masks are marked in its
    ``void`` and never queried. If it is ``asked``, they are not marked.

    Raises:
        UserError: Files are missing, corrupt, unpaired or of different sizes, or an id is unknown.
    """
    one, two = listing.codes
    source_size, size = listing.shapes
    room = ArrayStore(listing.cache, listing.memory_gb)
    # Check all headers before decoding, which may take long.
    parts = [None if part is None else part.sound() for part in (listing.source, listing.pool, listing.test)]
    found = [None if part is None else part.sizes() for part in parts]
    known = labelled(room, listing.source, one, source_size, found[0])
    unknown = _images(room, listing.pool, size, found[1])
    truth: LabelMaps | None = None
    if listing.pool.labels is not None:
        truth = hold_maps(room, listing.pool.labels, two, size)
    if listing.void == "known":
        masks = masks_of(truth, listing.pool.masks, size)
        unknown = Images(unknown.keys, unknown.pixels, unknown.files, sizes=unknown.sizes, void=masks)
    held_out = labelled(room, listing.test, two, size, found[2]) if listing.test is not None else None
    room.warn_if_on_demand()
    return Shift(source=known, pool=unknown, truth=truth, test=held_out)


def labelled(room: ArrayStore, part: Part, codes: Codes, size: ImageSize, found: Tensor | None) -> Domain:
    """Decode images and their label files.

    Args:
        size: Height and width to resize both to.
        found: Original heights and widths, int64 (N, 2).
    """
    assert part.labels is not None
    return Domain(_images(room, part, size, found), hold_maps(room, part.labels, codes, size), codes.classes)


def _images(room: ArrayStore, part: Part, size: ImageSize, found: Tensor | None) -> Images:
    decoded = decode_into(room, part.images, size)
    return Images(decoded.keys, decoded.pixels, decoded.files, sizes=found)
