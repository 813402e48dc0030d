"""A whole problem from its parts, once it is known which files they are."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Generic, Literal, ParamSpec, get_args

from torch import Tensor

from ducats.data.decode import Size, decode_into, sides
from ducats.data.maps.codes import Codes
from ducats.data.maps.label_maps import LabelMaps, hold_maps, masks_of
from ducats.data.maps.pairs import Part
from ducats.data.store import Room
from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError

P = ParamSpec("P")
Void = Literal["known", "asked"]  # what is known beforehand of target pixels that have no class


@dataclass(frozen=True)
class Listing:
    """Which files a problem is made of, and what the numbers in its label files mean; nothing is decoded."""

    source: Part  # images with label files
    pool: Part  # images; their label files, where listed, are for an oracle
    test: Part | None  # images with label files
    codes: tuple[Codes, Codes]  # of the source's label files, and of the target's
    size: Size  # height and width of the target's images
    source_size: Size | None = None  # of the source's; None for the same
    void: Void = "known"  # what is known beforehand; see ``load_maps``
    cache: str | Path | None = None  # where decoded images and maps go that do not fit in memory
    memory_gb: float | None = None  # of both to hold in memory, in all; None: see ``decode``

    def __post_init__(self) -> None:
        if self.void not in get_args(Void):
            raise UserError(f"data.knobs.void is known or asked, not {self.void!r}")
        assert self.codes[0].classes == self.codes[1].classes

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of the source's images as stored, and of the target's."""
        return sides(self.size if self.source_size is None else self.source_size), sides(self.size)


class Reader(Generic[P]):
    """A data set of files: it says which they are (``listing``), and, called, reads them."""

    def __init__(self, listing: Callable[P, Listing]) -> None:
        self.listing = listing
        update_wrapper(self, listing)
        self.__annotations__ = {**listing.__annotations__, "return": Shift}  # to those who look, a data set

    def __call__(self, *given: P.args, **knobs: P.kwargs) -> Shift:
        """Read all files."""
        return load_maps(self.listing(*given, **knobs))


def load_maps(listing: Listing) -> Shift:
    """Decode source, pool and test set; the pool's label maps, where listed, become the ``truth``.

    With ``void`` as ``known``, pixels that have no class, by the pool's label files or masks, are in its
    ``void``, so that nobody is asked about them. With ``asked``, nothing is known of them beforehand.

    Raises:
        UserError: Files are missing, broken, or not in pairs of one size; an id has no name.
    """
    one, two = listing.codes
    source_size, size = listing.shapes
    room = Room(listing.cache, listing.memory_gb)
    # Before decoding, which may take long, everything is known that headers tell.
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
    room.warn()
    return Shift(source=known, pool=unknown, truth=truth, test=held_out)


def labelled(room: Room, part: Part, codes: Codes, size: Size, found: Tensor | None) -> Domain:
    """Decode images and their label files.

    Args:
        room: Where they go.
        part: Which.
        codes: What the numbers in the label files mean.
        size: Height and width to store them in.
        found: Their own heights and widths.
    """
    assert part.labels is not None
    return Domain(_images(room, part, size, found), hold_maps(room, part.labels, codes, size), codes.classes)


def _images(room: Room, part: Part, size: Size, found: Tensor | None) -> Images:
    decoded = decode_into(room, part.images, size)
    return Images(decoded.keys, decoded.pixels, decoded.files, sizes=found)
