"""Pixel locations as runs: consecutive locations in one image, whose positions may be memory-mapped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ducats.utils.npz_columns import AnyArray, Columns

# Memory-mapped columns; the columns of the runs are short and stay in memory.
MAPPED_COLUMNS = ("position", "unit")
POSITION_LIMIT = 2**32  # a position is stored as uint32


@dataclass(frozen=True)
class PixelRuns:
    """``R`` runs of locations (image, pixel), in order."""

    image: AnyArray  # (R,) int64
    count: AnyArray  # (R,) int64, locations of the run
    implicit: AnyArray  # (R,) bool, positions are 0 … count - 1 and not stored
    position: AnyArray  # positions of the other runs, concatenated
    units_per_run: AnyArray  # (R,) int64, units of the run; 0: each location is its own unit
    unit_size: AnyArray  # locations of each unit, of all runs that have units

    @classmethod
    def from_locations(
        cls, image: AnyArray, position: AnyArray, unit_size: AnyArray | None = None
    ) -> "PixelRuns":
        """Build runs from single locations, each of which is its own unit if ``unit_size`` is None."""
        if image.ndim != 1 or image.shape != position.shape:
            raise ValueError(f"image has shape {image.shape}, but position has shape {position.shape}")
        check_index_range(image, 2**31, "image")
        check_index_range(position, POSITION_LIMIT, "position")
        image = image.astype(np.int64)
        first = np.flatnonzero(np.diff(image, prepend=-1))
        count = np.diff(first, append=len(image))
        implicit = np.zeros(0, bool)
        if len(first):
            implicit = np.logical_and.reduceat(position == concat_ranges(count), first)
        stored = position[~np.repeat(implicit, count)].astype(np.uint32)
        units_per_run, unit_size = _split_units(count, unit_size)
        return cls(image[first], count, implicit, stored, units_per_run, unit_size)

    @classmethod
    def from_columns(cls, columns: Mapping[str, AnyArray]) -> "PixelRuns":
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
        if len(found.position) != count[~whole].sum() or len(found.unit_size) != units.sum():
            raise ValueError("its number of positions or units does not match its runs")
        return found

    def to_columns(self) -> Columns:
        """Return the columns to store, omitting those that carry no information."""
        kept: dict[str, tuple[AnyArray, np.typing.DTypeLike]] = {"image": (self.image, np.int32)}
        if (self.count != 1).any():
            kept["count"] = (self.count, np.uint32)
        if not self.implicit.all():
            kept["position"] = (self.position, np.uint32)
            if self.implicit.any():
                kept["whole"] = (self.implicit, np.bool_)
        if self.units_per_run.any():
            kept["units"] = (self.units_per_run, np.uint32)
            kept["unit"] = (self.unit_size, np.min_scalar_type(int(self.unit_size.max())))
        return kept

    @cached_property
    def n_locations(self) -> int:
        """Number of locations."""
        return int(self.count.sum())

    @cached_property
    def n_units(self) -> int:
        """Number of units; each location of a run without units is one."""
        return int(np.where(self.units_per_run == 0, self.count, self.units_per_run).sum())

    @cached_property
    def first_index(self) -> AnyArray:
        """Index of each run's first location among all locations."""
        return exclusive_cumsum(self.count)

    @cached_property
    def _first_position(self) -> AnyArray:
        return exclusive_cumsum(np.where(self.implicit, 0, self.count))

    @cached_property
    def _first_unit(self) -> AnyArray:
        return exclusive_cumsum(self.units_per_run)

    @cached_property
    def by_image(self) -> tuple[AnyArray, AnyArray]:
        """Runs sorted by image, stable, and their images."""
        order = np.argsort(self.image, kind="stable")
        return order, self.image[order]

    def runs_of_images(self, images: AnyArray) -> AnyArray:
        """Return the runs of some images, image by image."""
        order, image = self.by_image
        low = np.searchsorted(image, images, "left")
        found: AnyArray = order[range_indices(low, np.searchsorted(image, images, "right") - low)]
        return found

    def location_indices(self, runs: AnyArray) -> slice | AnyArray:
        """Return the indices of the runs' locations among all locations, e.g. to look up their labels."""
        return range_indices(self.first_index[runs], self.count[runs])

    def positions(self, runs: AnyArray) -> AnyArray:
        """Return the runs' positions, concatenated, int64, without reading others."""
        count, whole = self.count[runs], self.implicit[runs]
        if whole.all():
            return concat_ranges(count)
        stored = self.position[range_indices(self._first_position[runs][~whole], count[~whole])]
        if not whole.any():
            return stored.astype(np.int64)
        found = concat_ranges(count)
        found[np.repeat(~whole, count)] = stored
        return found

    def locations_at(self, index: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return image and position of some locations, given by their indices, without reading others."""
        run = np.searchsorted(self.first_index, index, "right") - 1
        position, offset = index - self.first_index[run], self._first_position - self.first_index
        stored = ~self.implicit[run]
        position[stored] = self.position[(index + offset[run])[stored]]
        return self.image[run], position

    def unit_sizes(self, runs: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return the number of locations of each unit of the runs, int64, and the units per run."""
        units, count = self.units_per_run[runs], self.count[runs]
        single = units == 0
        each = np.where(single, count, units)
        found = np.ones(each.sum(), np.int64)
        if not single.all():
            found[np.repeat(~single, each)] = self.unit_size[
                range_indices(self._first_unit[runs][~single], units[~single])
            ]
        return found, each


def _split_units(count: AnyArray, unit_size: AnyArray | None) -> tuple[AnyArray, AnyArray]:
    """Return the number of units of each run, and the unit sizes."""
    if unit_size is None or (unit_size.shape == (count.sum(),) and (unit_size == 1).all()):
        return np.zeros(len(count), np.int64), np.zeros(0, np.uint32)
    check_index_range(unit_size, POSITION_LIMIT, "unit")
    ends, run_ends = unit_size.cumsum(), count.cumsum()
    last = np.searchsorted(ends, run_ends)
    if (unit_size < 1).any() or unit_size.sum() != count.sum() or (ends[last] != run_ends).any():
        raise ValueError("units must be non-empty, lie in one image each, and cover the request")
    return np.diff(last + 1, prepend=0), unit_size.astype(np.uint32)


def check_index_range(values: AnyArray, limit: int, name: str) -> None:
    """Raise unless all values are non-negative integers below a limit."""
    if len(values) and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= limit):
        raise ValueError(f"each {name} must be an integer from 0 to {limit - 1}")


def exclusive_cumsum(count: AnyArray) -> AnyArray:
    """Return the exclusive cumulative sum."""
    found: AnyArray = np.cumsum(count) - count
    return found


def concat_ranges(count: AnyArray) -> AnyArray:
    """Concatenate ``range(n)`` for each count ``n``.

    >>> concat_ranges(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    found: AnyArray = np.arange(count.sum()) - np.repeat(exclusive_cumsum(count), count)
    return found


def range_indices(first: AnyArray, count: AnyArray) -> slice | AnyArray:
    """Return the indices of several ranges; a slice if they are contiguous, which avoids building an array.

    >>> range_indices(np.array([4, 7]), np.array([3, 2]))
    slice(4, 9, None)
    >>> range_indices(np.array([4, 9]), np.array([3, 2])).tolist()
    [4, 5, 6, 9, 10]
    """
    if not len(first):
        return slice(0, 0)
    if (first[1:] == first[:-1] + count[:-1]).all():
        return slice(int(first[0]), int(first[-1] + count[-1]))
    found: AnyArray = np.repeat(first - exclusive_cumsum(count), count) + np.arange(count.sum())
    return found


def chunk_by_weight(weight: AnyArray, max_weight: int) -> Iterator[slice]:
    """Split a sequence into slices of about ``max_weight`` weight; a heavier item gets its own slice.

    >>> [(s.start, s.stop) for s in chunk_by_weight(np.array([2, 2, 2, 9, 1]), 4)]
    [(0, 1), (1, 3), (3, 4), (4, 5)]
    """
    if len(weight):
        cuts = np.flatnonzero(np.diff(np.cumsum(weight) // max_weight)) + 1
        ends = [*cuts.tolist(), len(weight)]
        yield from (slice(low, high) for low, high in zip([0, *ends[:-1]], ends, strict=True))
