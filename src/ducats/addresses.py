"""Pixel locations as runs: consecutive locations in one image, whose positions may be memory-mapped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ducats.columns import Array, Columns

LONG = ("position", "unit")  # memory-mapped columns; the columns of the runs are short and stay in memory
POSITIONS = 2**32  # a position is stored as uint32


@dataclass(frozen=True)
class Addresses:
    """``R`` runs of locations (image, pixel), in order."""

    image: Array  # (R,) int64
    count: Array  # (R,) int64, locations of the run
    whole: Array  # (R,) bool, positions are 0 … count - 1 and not stored
    position: Array  # positions of the other runs, concatenated
    units: Array  # (R,) int64, units of the run; 0: each location is its own unit
    unit: Array  # locations of each unit, of all runs that have units

    @classmethod
    def of(cls, image: Array, position: Array, unit: Array | None = None) -> "Addresses":
        """Build runs from single locations.

        Args:
            image: ``(Q,)``.
            position: ``(Q,)``.
            unit: number of locations of each unit, in order; None if each location is its own unit.
        """
        if image.ndim != 1 or image.shape != position.shape:
            raise ValueError(f"image has shape {image.shape}, but position has shape {position.shape}")
        check_whole_numbers(image, 2**31, "image")
        check_whole_numbers(position, POSITIONS, "position")
        image = image.astype(np.int64)
        first = np.flatnonzero(np.diff(image, prepend=-1))
        count = np.diff(first, append=len(image))
        whole = np.zeros(0, bool)
        if len(first):
            whole = np.logical_and.reduceat(position == ramps(count), first)
        stored = position[~np.repeat(whole, count)].astype(np.uint32)
        units, sizes = _units(count, unit)
        return cls(image[first], count, whole, stored, units, sizes)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> "Addresses":
        """Build runs from a file's columns; without ``count`` each run is one location."""
        image = columns["image"].astype(np.int64)
        none = np.zeros(0, np.uint32)
        count = columns.get("count", np.ones(len(image))).astype(np.int64)
        whole = columns.get("whole", np.full(len(image), "position" not in columns)).astype(bool)
        units = columns.get("units", np.zeros(len(image))).astype(np.int64)
        found = cls(image, count, whole, columns.get("position", none), units, columns.get("unit", none))
        if image.shape != count.shape or image.shape != whole.shape or image.shape != units.shape:
            raise ValueError("its columns differ in length")
        if len(image) and (image.min() < 0 or count.min() < 1):
            raise ValueError("it has a run without an image or without a location")
        if len(found.position) != count[~whole].sum() or len(found.unit) != units.sum():
            raise ValueError("its number of positions or units does not match its runs")
        return found

    def columns(self) -> Columns:
        """Return the columns to store, omitting those that carry no information."""
        kept: dict[str, tuple[Array, np.typing.DTypeLike]] = {"image": (self.image, np.int32)}
        if (self.count != 1).any():
            kept["count"] = (self.count, np.uint32)
        if not self.whole.all():
            kept["position"] = (self.position, np.uint32)
            if self.whole.any():
                kept["whole"] = (self.whole, np.bool_)
        if self.units.any():
            kept["units"] = (self.units, np.uint32)
            kept["unit"] = (self.unit, np.min_scalar_type(int(self.unit.max())))
        return kept

    @cached_property
    def total(self) -> int:
        """Number of locations."""
        return int(self.count.sum())

    @cached_property
    def units_in_all(self) -> int:
        """Number of units; each location of a run without units is one."""
        return int(np.where(self.units == 0, self.count, self.units).sum())

    @cached_property
    def first(self) -> Array:
        """Index of each run's first location among all locations."""
        return before(self.count)

    @cached_property
    def _stored(self) -> Array:
        return before(np.where(self.whole, 0, self.count))

    @cached_property
    def _units(self) -> Array:
        return before(self.units)

    @cached_property
    def by_image(self) -> tuple[Array, Array]:
        """Runs sorted by image, stable, and their images."""
        order = np.argsort(self.image, kind="stable")
        return order, self.image[order]

    def runs_of(self, images: Array) -> Array:
        """Return the runs of some images, image by image."""
        order, image = self.by_image
        low = np.searchsorted(image, images, "left")
        found: Array = order[spread(low, np.searchsorted(image, images, "right") - low)]
        return found

    def places(self, runs: Array) -> slice | Array:
        """Return the indices of the runs' locations among all locations, e.g. to look up their labels."""
        return spread(self.first[runs], self.count[runs])

    def positions(self, runs: Array) -> Array:
        """Return the runs' positions, concatenated, int64, without reading others."""
        count, whole = self.count[runs], self.whole[runs]
        if whole.all():
            return ramps(count)
        stored = self.position[spread(self._stored[runs][~whole], count[~whole])]
        if not whole.any():
            return stored.astype(np.int64)
        found = ramps(count)
        found[np.repeat(~whole, count)] = stored
        return found

    def sizes(self, runs: Array) -> tuple[Array, Array]:
        """Return the number of locations of each unit of the runs, int64, and the units per run."""
        units, count = self.units[runs], self.count[runs]
        single = units == 0
        each = np.where(single, count, units)
        found = np.ones(each.sum(), np.int64)
        if not single.all():
            found[np.repeat(~single, each)] = self.unit[spread(self._units[runs][~single], units[~single])]
        return found, each


def _units(count: Array, unit: Array | None) -> tuple[Array, Array]:
    """Return the number of units of each run, and the unit sizes."""
    if unit is None or (unit.ndim == 1 and len(unit) == count.sum() and (unit == 1).all()):
        return np.zeros(len(count), np.int64), np.zeros(0, np.uint32)
    check_whole_numbers(unit, POSITIONS, "unit")
    ends, run_ends = unit.cumsum(), count.cumsum()
    last = np.searchsorted(ends, run_ends)
    if (unit < 1).any() or unit.sum() != count.sum() or (ends[last] != run_ends).any():
        raise ValueError("units must be non-empty, lie in one image each, and cover the request")
    return np.diff(last + 1, prepend=0), unit.astype(np.uint32)


def check_whole_numbers(values: Array, limit: int, what: str) -> None:
    """Raise unless all values are non-negative integers below a limit."""
    if len(values) and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= limit):
        raise ValueError(f"each {what} must be an integer from 0 to {limit - 1}")


def before(count: Array) -> Array:
    """Return the exclusive cumulative sum."""
    found: Array = np.cumsum(count) - count
    return found


def ramps(count: Array) -> Array:
    """Concatenate ``range(n)`` for each count ``n``.

    >>> ramps(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    found: Array = np.arange(count.sum()) - np.repeat(before(count), count)
    return found


def spread(first: Array, count: Array) -> slice | Array:
    """Return the indices of several ranges; a slice if they are contiguous, which avoids building an array.

    >>> spread(np.array([4, 7]), np.array([3, 2])), spread(np.array([4, 9]), np.array([3, 2])).tolist()
    (slice(4, 9, None), [4, 5, 6, 9, 10])
    """
    if not len(first):
        return slice(0, 0)
    if (first[1:] == first[:-1] + count[:-1]).all():
        return slice(int(first[0]), int(first[-1] + count[-1]))
    found: Array = np.repeat(first - before(count), count) + np.arange(count.sum())
    return found


def chunks(weight: Array, most: int) -> Iterator[slice]:
    """Split a sequence into slices of about ``most`` weight; a heavier item gets its own slice.

    >>> [(s.start, s.stop) for s in chunks(np.array([2, 2, 2, 9, 1]), 4)]
    [(0, 1), (1, 3), (3, 4), (4, 5)]
    """
    if len(weight):
        cuts = np.flatnonzero(np.diff(np.cumsum(weight) // most)) + 1
        ends = [*cuts.tolist(), len(weight)]
        yield from (slice(low, high) for low, high in zip([0, *ends[:-1]], ends, strict=True))
