"""Requests: addresses to be labelled. Small ones are made of tensors, large ones written in pieces."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import columns
from ducats.addresses import LONG, POSITIONS, Addresses, check_whole_numbers
from ducats.columns import Array
from ducats.errors import UserError

IN_MEMORY = 1 << 22  # bytes of a request that is being written


class Block(NamedTuple):
    """Consecutive addresses of one image."""

    image: int
    position: Tensor  # (n,) int64
    unit: Tensor  # addresses of each unit, in order, int64


class Asked(NamedTuple):
    """All that is asked of one image."""

    image: int
    position: Tensor  # (n,) int64
    place: slice | Tensor  # where these addresses are in the request's order


class Request:
    """Addresses to be labelled, in the order in which they were chosen.

    Args:
        round: 1 for the first question.
        image: ``(Q,)`` integers, indices into the pool.
        position: ``(Q,)`` integers, 0 when an image is one row, else ``y * width + x``.
        unit: how many addresses each unit has that is labelled at once, in order; every address is a unit of
            its own if it is None.
    """

    def __init__(self, round: int, image: Tensor, position: Tensor, unit: Tensor | None = None) -> None:
        self.round = round
        self.addresses = Addresses.of(_array(image), _array(position), None if unit is None else _array(unit))
        self._path: Path | None = None

    def __len__(self) -> int:
        return self.addresses.total

    def __repr__(self) -> str:
        return f"Request(round {self.round}, {len(self)} addresses)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return Request.load, (self._path,)
        return Request, (self.round, self.image, self.position, self.unit)

    @property
    def image(self) -> Tensor:
        """``(Q,)`` int64, index into the pool; made anew at each call."""
        return torch.from_numpy(np.repeat(self.addresses.image, self.addresses.count))

    @property
    def position(self) -> Tensor:
        """``(Q,)`` int64; made anew at each call."""
        return torch.from_numpy(self.addresses.positions(self._runs))

    @property
    def unit(self) -> Tensor | None:
        """Addresses of each unit in order, int64; None if every address is a unit of its own."""
        return torch.from_numpy(self.addresses.sizes(self._runs)[0]) if self.addresses.units.any() else None

    @property
    def units(self) -> int:
        """How many units there are: what is answered at once."""
        return self.addresses.units_in_all

    def only(self, kept: Tensor) -> "Request":
        """The same request without some of its units.

        Args:
            kept: ``(Q,)`` bool, which addresses stay: of each unit all or none.
        """
        if kept.shape != (len(self),):
            raise ValueError(f"{len(self)} addresses were asked for, but {kept.numel()} are kept or dropped")
        sizes = self.addresses.sizes(self._runs)[0]
        stays = _array(kept.bool())
        owner = np.repeat(np.arange(len(sizes)), sizes)
        left = np.bincount(owner[stays], minlength=len(sizes))
        if ((left != 0) & (left != sizes)).any():
            raise ValueError("a unit is answered as a whole or not at all")
        unit = torch.from_numpy(sizes[left > 0]) if self.addresses.units.any() else None
        return Request(self.round, self.image[kept.bool()], self.position[kept.bool()], unit)

    @property
    def _runs(self) -> Array:
        return np.arange(len(self.addresses.image))

    def blocks(self) -> Iterator[Block]:
        """Consecutive addresses of one image at a time, in order; no more than a block is in memory."""
        for run, image in enumerate(self.addresses.image.tolist()):
            one = np.array([run])
            position, unit = self.addresses.positions(one), self.addresses.sizes(one)[0]
            yield Block(image, torch.from_numpy(position), torch.from_numpy(unit))

    def by_image(self) -> Iterator[Asked]:
        """Each image that is asked for once, in the pool's order, with all that is asked of it."""
        order, image = self.addresses.by_image
        cuts = np.flatnonzero(np.diff(image)) + 1
        for runs in np.split(order, cuts) if len(order) else []:
            place = self.addresses.places(runs)
            yield Asked(
                int(self.addresses.image[runs[0]]),
                torch.from_numpy(self.addresses.positions(runs)),
                place if isinstance(place, slice) else torch.from_numpy(place),
            )

    def save(self, path: Path) -> None:
        """Write the request; whole or not at all."""
        columns.write(path, {"round": (np.array(self.round), np.int64), **self.addresses.columns()})

    @classmethod
    def load(cls, path: Path) -> "Request":
        """Open a request; its positions stay on disk until they are looked at."""
        try:
            found = columns.read(path, LONG)
            request = cls.__new__(cls)
            request.round, request.addresses = int(found["round"]), Addresses.from_columns(found)
        except columns.UNREADABLE as error:
            raise UserError(
                f"{path} cannot be read ({error}): restore it from a copy, or remove it to choose anew"
            ) from error
        request._path = path
        return request


class RequestWriter:
    """Writes a request block by block while it is chosen; the file is there when the ``with`` ended well.

    Args:
        path: the file to write.
        round: 1 for the first question.
    """

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        self._runs: list[tuple[int, int, bool, int]] = []  # image, count, whole, units
        self._total = 0
        # They have no name on disk, so that nothing is left of them whatever happens.
        self._position, self._unit = _spool(path.parent), _spool(path.parent)

    def __len__(self) -> int:
        """Addresses so far."""
        return self._total

    def __enter__(self) -> "RequestWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def add(self, image: int, position: Tensor, unit: Tensor | None = None) -> None:
        """Ask for some addresses of an image.

        Args:
            image: index into the pool.
            position: ``(n,)`` integers, in the order in which they were chosen.
            unit: addresses of each unit, in order; every address is a unit of its own if it is None.
        """
        places = _array(position)
        check_whole_numbers(places, POSITIONS, "position")
        if not len(places):
            return
        block = Addresses.of(np.full(len(places), image), places, None if unit is None else _array(unit))
        self._runs.append((image, len(places), bool(block.whole[0]), int(block.units[0])))
        self._position.write(block.position.tobytes())
        self._unit.write(block.unit.tobytes())
        self._total += len(places)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._position, self._unit:
            if kind is None:
                self._finish()

    def _finish(self) -> None:
        image, count, whole, units = np.array(self._runs, np.int64).reshape(-1, 4).T
        addresses = Addresses(
            image, count, whole.astype(bool), _spooled(self._position), units, _spooled(self._unit)
        )
        columns.write(self.path, {"round": (np.array(self.round), np.int64), **addresses.columns()})


def _spool(folder: Path) -> "SpooledTemporaryFile[bytes]":
    return SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder))


def _spooled(spool: "SpooledTemporaryFile[bytes]") -> Array:
    """What was written, mapped if it is long."""
    length = spool.tell()
    if length <= IN_MEMORY:
        spool.seek(0)
        return np.frombuffer(spool.read(), np.uint32)
    spool.flush()
    return np.frombuffer(mmap.mmap(spool.fileno(), length, access=mmap.ACCESS_READ), np.uint32)


def _array(values: Tensor) -> Array:
    found: Array = values.detach().cpu().numpy()
    return found
