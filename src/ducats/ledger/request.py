"""Label requests: built from tensors, or written block by block if they are large."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import npz_columns
from ducats.errors import UserError
from ducats.npz_columns import AnyArray
from ducats.pixel_runs import MAPPED_COLUMNS, POSITION_LIMIT, PixelRuns, check_index_range

IN_MEMORY = 1 << 22  # bytes of a request kept in memory while it is written


class Block(NamedTuple):
    """Consecutive locations in one image."""

    image: int
    position: Tensor  # (n,) int64
    unit: Tensor  # number of locations in each unit, in order, int64


class Asked(NamedTuple):
    """All requested locations in one image."""

    image: int
    position: Tensor  # (n,) int64
    place: slice | Tensor  # indices of these locations in the request


class Request:
    """Locations to be labelled, in the order of selection.

    Args:
        round: from 1.
        image: ``(Q,)`` integers, indices into the pool.
        position: ``(Q,)`` integers: ``y * width + x``, or 0 if labels are per image.
        unit: number of locations in each unit, in order; one answer labels a whole unit. None if every
            location is its own unit.
    """

    def __init__(self, round: int, image: Tensor, position: Tensor, unit: Tensor | None = None) -> None:
        self.round = round
        self.addresses = PixelRuns.from_locations(
            _array(image), _array(position), None if unit is None else _array(unit)
        )
        self._path: Path | None = None

    def __len__(self) -> int:
        return self.addresses.n_locations

    def __repr__(self) -> str:
        return f"Request(round {self.round}, {len(self)} locations)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return Request.load, (self._path,)
        return Request, (self.round, self.image, self.position, self.unit)

    @property
    def image(self) -> Tensor:
        """``(Q,)`` int64, indices into the pool; computed on each access."""
        return torch.from_numpy(np.repeat(self.addresses.image, self.addresses.count))

    @property
    def position(self) -> Tensor:
        """``(Q,)`` int64; computed on each access."""
        return torch.from_numpy(self.addresses.positions(self._runs))

    @property
    def unit(self) -> Tensor | None:
        """Number of locations in each unit, in order, int64; None if every location is its own unit."""
        return (
            torch.from_numpy(self.addresses.unit_sizes(self._runs)[0])
            if self.addresses.units_per_run.any()
            else None
        )

    @property
    def units(self) -> int:
        """Number of units; one answer labels one unit."""
        return self.addresses.n_units

    def only(self, kept: Tensor) -> "Request":
        """Return the request restricted to some of its units.

        Args:
            kept: ``(Q,)`` bool mask of locations; must be constant within each unit.
        """
        if kept.shape != (len(self),):
            raise ValueError(f"the mask must have {len(self)} entries, not {kept.numel()}")
        sizes = self.addresses.unit_sizes(self._runs)[0]
        stays = _array(kept.bool())
        owner = np.repeat(np.arange(len(sizes)), sizes)
        left = np.bincount(owner[stays], minlength=len(sizes))
        if ((left != 0) & (left != sizes)).any():
            raise ValueError("the mask must be constant within each unit")
        unit = torch.from_numpy(sizes[left > 0]) if self.addresses.units_per_run.any() else None
        return Request(self.round, self.image[kept.bool()], self.position[kept.bool()], unit)

    @property
    def _runs(self) -> AnyArray:
        return np.arange(len(self.addresses.image))

    def blocks(self) -> Iterator[Block]:
        """Yield runs of consecutive locations in one image, in order; holds one block in memory."""
        for run, image in enumerate(self.addresses.image.tolist()):
            one = np.array([run])
            position, unit = self.addresses.positions(one), self.addresses.unit_sizes(one)[0]
            yield Block(image, torch.from_numpy(position), torch.from_numpy(unit))

    def by_image(self) -> Iterator[Asked]:
        """Yield each requested image once, in the order of the pool, with all its requested locations."""
        order, image = self.addresses.by_image
        cuts = np.flatnonzero(np.diff(image)) + 1
        for runs in np.split(order, cuts) if len(order) else []:
            place = self.addresses.location_indices(runs)
            yield Asked(
                int(self.addresses.image[runs[0]]),
                torch.from_numpy(self.addresses.positions(runs)),
                place if isinstance(place, slice) else torch.from_numpy(place),
            )

    def save(self, path: Path) -> None:
        """Save the request atomically."""
        npz_columns.write_columns(
            path, {"round": (np.array(self.round), np.int64), **self.addresses.to_columns()}
        )

    @classmethod
    def load(cls, path: Path) -> "Request":
        """Open a saved request; its positions are read from disk on access."""
        try:
            found = npz_columns.read_columns(path, MAPPED_COLUMNS)
            request = cls.__new__(cls)
            request.round, request.addresses = int(found["round"]), PixelRuns.from_columns(found)
        except npz_columns.READ_ERRORS as error:
            raise UserError(
                f"{path} is corrupt ({error}); restore it from a backup, or delete it to select again"
            ) from error
        request._path = path
        return request


class RequestWriter:
    """Context manager that writes a request block by block. The file appears if the block exits normally."""

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        self._runs: list[tuple[int, int, bool, int]] = []  # image, count, whole, units
        self._total = 0
        # Unnamed temporary files: nothing is left on disk after a crash.
        self._position, self._unit = _spool(path.parent), _spool(path.parent)

    def __len__(self) -> int:
        """Return the number of locations so far."""
        return self._total

    def __enter__(self) -> "RequestWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def add(self, image: int, position: Tensor, unit: Tensor | None = None) -> None:
        """Add locations in one image.

        Args:
            image: index into the pool.
            position: ``(n,)`` integers, in the order of selection.
            unit: number of locations in each unit, in order; None if every location is its own unit.
        """
        places = _array(position)
        check_index_range(places, POSITION_LIMIT, "position")
        if not len(places):
            return
        block = PixelRuns.from_locations(
            np.full(len(places), image), places, None if unit is None else _array(unit)
        )
        self._runs.append((image, len(places), bool(block.implicit[0]), int(block.units_per_run[0])))
        self._position.write(block.position.tobytes())
        self._unit.write(block.unit_size.tobytes())
        self._total += len(places)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._position, self._unit:
            if kind is None:
                self._finish()

    def _finish(self) -> None:
        image, count, whole, units = np.array(self._runs, np.int64).reshape(-1, 4).T
        addresses = PixelRuns(
            image, count, whole.astype(bool), _spooled(self._position), units, _spooled(self._unit)
        )
        npz_columns.write_columns(
            self.path, {"round": (np.array(self.round), np.int64), **addresses.to_columns()}
        )


def _spool(folder: Path) -> "SpooledTemporaryFile[bytes]":
    return SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder))


def _spooled(spool: "SpooledTemporaryFile[bytes]") -> AnyArray:
    """Return the written values, memory-mapped if the file is large."""
    length = spool.tell()
    if length <= IN_MEMORY:
        spool.seek(0)
        return np.frombuffer(spool.read(), np.uint32)
    spool.flush()
    return np.frombuffer(mmap.mmap(spool.fileno(), length, access=mmap.ACCESS_READ), np.uint32)


def _array(values: Tensor) -> AnyArray:
    found: AnyArray = values.detach().cpu().numpy()
    return found
