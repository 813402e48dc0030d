"""Label requests: built from tensors, or written block by block if they are large."""

import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ducats.runfolder.label_files import AuditMarks, read_request_file, write_request_file
from ducats.runfolder.pixel_runs import POSITION_LIMIT, PixelRuns, check_index_range
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.files import explain_errors, make_folder
from ducats.utils.npz_columns import AnyArray

SPOOL_MEMORY_BYTES = 1 << 22  # bytes of a request kept in memory while it is written


class RequestBlock(NamedTuple):
    """Consecutive locations in one image."""

    image: int
    position: Tensor  # (n,) int64
    unit_sizes: Tensor  # number of locations in each unit, in order, int64


class ImageRequest(NamedTuple):
    """All requested locations in one image."""

    image: int
    position: Tensor  # (n,) int64
    indices: slice | Tensor  # of these locations in the request


class Request:
    """Locations to be labelled, in the order of selection.

    Args:
        round: from 1.
        image: ``(Q,)`` integers, indices into the pool.
        position: ``(Q,)`` integers: ``y * width + x``, or 0 if labels are per image.
        unit_sizes: number of locations in each unit, in order; one answer labels a whole unit. None if every
            location is its own unit.
        marks: which locations are for the audit; by default none.
    """

    def __init__(
        self,
        round: int,
        image: Tensor,
        position: Tensor,
        unit_sizes: Tensor | None = None,
        *,
        marks: AuditMarks | None = None,
    ) -> None:
        self.round, self.marks = round, marks or AuditMarks()
        self.pixel_runs = PixelRuns.from_locations(
            _to_numpy(image), _to_numpy(position), None if unit_sizes is None else _to_numpy(unit_sizes)
        )
        self._path: Path | None = None

    def __len__(self) -> int:
        return self.pixel_runs.n_locations

    def __repr__(self) -> str:
        return f"Request(round {self.round}, {len(self)} locations)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return Request.load, (self._path,)
        make = partial(Request, marks=self.marks)
        return make, (self.round, self.image, self.position, self.unit_sizes)

    @property
    def image(self) -> Tensor:
        """``(Q,)`` int64, indices into the pool; computed on each access."""
        return torch.from_numpy(np.repeat(self.pixel_runs.image, self.pixel_runs.count))

    @property
    def position(self) -> Tensor:
        """``(Q,)`` int64; computed on each access."""
        return torch.from_numpy(self.pixel_runs.positions(self._all_runs))

    @property
    def unit_sizes(self) -> Tensor | None:
        """Number of locations in each unit, in order, int64; None if every location is its own unit."""
        return (
            torch.from_numpy(self.pixel_runs.unit_sizes(self._all_runs)[0])
            if self.pixel_runs.units_per_run.any()
            else None
        )

    @property
    def n_units(self) -> int:
        """Number of units; one answer labels one unit."""
        return self.pixel_runs.n_units

    def subset(self, keep: Tensor) -> "Request":
        """Return the request restricted to some of its units.

        Args:
            keep: ``(Q,)`` bool mask of locations; must be constant within each unit.
        """
        if keep.shape != (len(self),):
            raise ValueError(f"the mask must have {len(self)} entries, not {keep.numel()}")
        unit_sizes = self.pixel_runs.unit_sizes(self._all_runs)[0]
        keep_array = _to_numpy(keep.bool())
        owner = np.repeat(np.arange(len(unit_sizes)), unit_sizes)
        n_kept = np.bincount(owner[keep_array], minlength=len(unit_sizes))
        if ((n_kept != 0) & (n_kept != unit_sizes)).any():
            raise ValueError("the mask must be constant within each unit")
        kept_unit_sizes = (
            torch.from_numpy(unit_sizes[n_kept > 0]) if self.pixel_runs.units_per_run.any() else None
        )
        marks, kept = self.marks.restricted_to(keep_array), keep.bool()
        return Request(self.round, self.image[kept], self.position[kept], kept_unit_sizes, marks=marks)

    @property
    def picks(self) -> "Request":
        """The request without the audit: what the query selected."""
        if not len(self.marks.index):
            return self
        return self.subset(~torch.from_numpy(self.marks.mask(len(self))))

    @property
    def _all_runs(self) -> AnyArray:
        return np.arange(len(self.pixel_runs.image))

    def blocks(self) -> Iterator[RequestBlock]:
        """Yield runs of consecutive locations in one image, in order; holds one block in memory."""
        return blocks_of(self.pixel_runs)

    def by_image(self) -> Iterator[ImageRequest]:
        """Yield each requested image once, in the order of the pool, with all its requested locations."""
        order, image = self.pixel_runs.by_image
        cuts = np.flatnonzero(np.diff(image)) + 1
        for runs in np.split(order, cuts) if len(order) else []:
            indices = self.pixel_runs.location_indices(runs)
            yield ImageRequest(
                int(self.pixel_runs.image[runs[0]]),
                torch.from_numpy(self.pixel_runs.positions(runs)),
                indices if isinstance(indices, slice) else torch.from_numpy(indices),
            )

    def save(self, path: Path) -> None:
        """Save the request atomically."""
        write_request_file(path, self.round, self.pixel_runs, self.marks)

    @classmethod
    def load(cls, path: Path) -> "Request":
        """Open a saved request; its positions are read from disk on access."""
        request = cls.__new__(cls)
        request.round, request.pixel_runs, request.marks = read_request_file(path)
        request._path = path
        return request


def blocks_of(pixel_runs: PixelRuns) -> Iterator[RequestBlock]:
    """Yield one block per run; see ``Request.blocks``."""
    for run, image in enumerate(pixel_runs.image.tolist()):
        one = np.array([run])
        position, unit_sizes = pixel_runs.positions(one), pixel_runs.unit_sizes(one)[0]
        yield RequestBlock(image, torch.from_numpy(position), torch.from_numpy(unit_sizes))


def load_request(run_folder: RunFolder, round_number: int) -> Request | None:
    """Return the request of a round; None if there is none yet."""
    path = run_folder.request_path(round_number)
    return Request.load(path) if path.exists() else None


def save_request(run_folder: RunFolder, request: Request) -> None:
    """Save a request, before it is answered."""
    request.save(run_folder.request_path(request.round))


class RequestSpool:
    """Context manager that collects locations block by block, on disk if they are many."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[tuple[int, int, bool, int]] = []  # image, count, whole, units
        self._n_locations = 0
        # Unnamed temporary files: nothing is left on disk after a crash.
        self._position, self._unit_sizes = _spool(folder), _spool(folder)

    def __len__(self) -> int:
        return self._n_locations

    def __enter__(self) -> Self:
        make_folder(self._folder)
        return self

    def add(self, image: int, position: Tensor, unit_sizes: Tensor | None = None) -> None:
        """Add locations in one image; see ``Request``."""
        positions = _to_numpy(position)
        check_index_range(positions, POSITION_LIMIT, "position")
        if not len(positions):
            return
        block = PixelRuns.from_locations(
            np.full(len(positions), image), positions, None if unit_sizes is None else _to_numpy(unit_sizes)
        )
        self._runs.append((image, len(positions), bool(block.implicit[0]), int(block.units_per_run[0])))
        with explain_errors(self._folder):
            self._position.write(block.position.tobytes())
            self._unit_sizes.write(block.unit_size.tobytes())
        self._n_locations += len(positions)

    def pixel_runs(self) -> PixelRuns:
        """Return the locations added so far; none may be added afterwards."""
        image, count, whole, units = np.array(self._runs, np.int64).reshape(-1, 4).T
        position, unit_sizes = _read_spool(self._position), _read_spool(self._unit_sizes)
        return PixelRuns(image, count, whole.astype(bool), position, units, unit_sizes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._position.close()
        self._unit_sizes.close()


class RequestWriter(RequestSpool):
    """Context manager that writes a request block by block. The file appears if the block exits normally."""

    def __init__(self, path: Path, round: int) -> None:
        super().__init__(path.parent)
        self.path, self.round, self.marks = path, round, AuditMarks()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                write_request_file(self.path, self.round, self.pixel_runs(), self.marks)
        finally:
            super().__exit__(kind, error, trace)


def _spool(folder: Path) -> "SpooledTemporaryFile[bytes]":
    return SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES, dir=str(folder))


def _read_spool(spool: "SpooledTemporaryFile[bytes]") -> AnyArray:
    """Return the written values, memory-mapped if the file is large."""
    length = spool.tell()
    if length <= SPOOL_MEMORY_BYTES:
        spool.seek(0)
        return np.frombuffer(spool.read(), np.uint32)
    spool.flush()
    return np.frombuffer(mmap.mmap(spool.fileno(), length, access=mmap.ACCESS_READ), np.uint32)


def _to_numpy(values: Tensor) -> AnyArray:
    array: AnyArray = values.detach().cpu().numpy()
    return array
