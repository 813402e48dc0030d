"""From many files to one tensor: in memory, in a file where that is too much, or bit by bit if need be.

What one file becomes is a ``Recipe``: an image, a label map. Where the arrays of all files go is a ``Room``.
"""

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from torch import Tensor

from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.room import free_disk_gb, free_memory_gb

Files = Sequence[tuple[str, Path]]  # keys, and where the files are
Array = NDArray[Any]
S = TypeVar("S")
T = TypeVar("T")

_BLOCK = 256  # files decoded before they are put in their place: bounds what waits in memory
_BLOCK_BYTES = 2**28  # and so do bytes, where one file makes much
_NAMED = 5  # unreadable files that an error names
_MEMORY_GB = 4.0  # to hold where the system does not say how much there is
SPARE_GB = 1.0  # of disk that is left for checkpoints


@dataclass(frozen=True)
class Recipe:
    """How one file becomes one array."""

    read: Callable[[Path], Array]  # of the shape and dtype below; whatever it raises is the file's fault
    begin: Callable[[Path], object]  # as little of it as shows that it can be read
    shape: tuple[int, ...]  # of one file's array
    dtype: "np.dtype[Any]"
    what: str  # in names of cached files, and in sentences: "images"
    identity: object  # JSON; another one when the same file would give another array
    remedy: str  # what to do about files that cannot be read

    def gigabytes(self, count: int) -> float:
        """Gigabytes (2**30 bytes) that the arrays of so many files take."""
        return count * prod(self.shape) * self.dtype.itemsize / 2**30


class Room:
    """Where decoded arrays go: one allowance of memory for several sets of files, the first ones first."""

    def __init__(self, cache: str | Path | None, memory_gb: float | None) -> None:
        self._cache = None if cache is None else Path(cache).expanduser()
        self._left = allowance(memory_gb)
        self._on_demand = False

    def hold(self, files: Files, recipe: Recipe) -> "Tensor | FileArrays":
        """The arrays of these files, wherever there is room for them."""
        taken = recipe.gigabytes(len(files))
        held: Tensor | FileArrays
        if taken <= self._left:
            self._left -= taken
            held = torch.from_numpy(_in_memory(files, recipe))
        elif self._cache is not None:
            held = _in_cache(files, recipe, self._cache)
        else:
            held = _in_temporary_file(files, recipe)
        self._on_demand |= isinstance(held, FileArrays)
        return held

    def warn(self) -> None:
        """Say what it costs that files stay files, if any do."""
        if self._on_demand:
            warnings.warn(
                f"decoded images do not fit in memory or in {self._cache or tempfile.gettempdir()}: they are "
                "decoded again for every batch, which is slower; give --set data.knobs.cache=DIR on a larger "
                "disk, or a smaller data.knobs.size",
                stacklevel=3,
            )


class FileArrays:
    """Arrays that are decoded whenever they are looked at, where neither memory nor disk has room for them.

    To the rest of the library it is what a tensor is, as far as ``domain.Pixels`` and ``domain.Maps`` go.
    """

    def __init__(self, files: Files, recipe: Recipe) -> None:
        self.shape = torch.Size((len(files), *recipe.shape))
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, recipe.dtype)).dtype
        self.ndim = len(self.shape)
        self._files = tuple(files)
        self._recipe = recipe

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        rows = torch.arange(len(self))[index]
        files = [self._files[row] for row in rows.flatten().tolist()]
        return torch.from_numpy(_in_memory(files, self._recipe)).view(*rows.shape, *self._recipe.shape)


def allowance(memory_gb: float | None) -> float:
    """Gigabytes to hold in memory: as given, or half of what is free, shared by all processes."""
    if memory_gb is not None:
        return memory_gb
    free = free_memory_gb()
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if several else 1
    return _MEMORY_GB if free is None else free / 2 / processes


def each(work: Callable[[Path], T], paths: Sequence[Path], what: str, remedy: str) -> list[T]:
    """What ``work`` makes of each file; one sentence about all that it fails on.

    Raises:
        UserError: ``work`` raised for some of them.
    """
    done, failed = [], []
    for path, outcome in zip(paths, attempts(work, paths), strict=True):
        if isinstance(outcome, Failure):
            failed.append((path, outcome.reason))
        else:
            done.append(outcome)
    if failed:
        raise UserError(complaint(failed, len(paths), what, remedy))
    return done


@dataclass(frozen=True)
class Failure:
    """Why a file cannot be read."""

    reason: str


def attempts(work: Callable[[Path], T], paths: Sequence[Path], block: int = _BLOCK) -> Iterator[T | Failure]:
    """What ``work`` makes of each file, or why it cannot: in order, by a thread per core.

    Pillow and NumPy free the interpreter for most of it.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(_cores()) as threads:
        # Pillow warns of odd metadata and large pictures. What cannot be read is an error of its own,
        # and nobody could tell from the warning which of a hundred thousand files is meant.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for start in range(0, len(paths), block):
            yield from threads.map(lambda path: attempt(work, path), paths[start : start + block])


def complaint(failed: Sequence[tuple[Path, str]], count: int, what: str, remedy: str) -> str:
    """One sentence about all files that cannot be read."""
    named = ", ".join(f"{path} ({reason})" for path, reason in failed[:_NAMED])
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return f"{len(failed)} of {count} {what} cannot be read: {named}{more}; {remedy}"


def attempt(work: Callable[[S], T], file: S) -> T | Failure:
    """What ``work`` makes of a file, or why it cannot."""
    try:
        return work(file)
    except FileNotFoundError:
        return Failure("no such file")
    except IsADirectoryError:
        return Failure("a folder")
    except PermissionError:
        return Failure("no permission to read it")
    except UnidentifiedImageError:
        return Failure("not an image")
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        return Failure(str(error) or type(error).__name__)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decoded(files: Files, recipe: Recipe) -> Iterator[Array]:
    """Each file's array, in order; after the last, an error if any was unreadable."""
    failed: list[tuple[Path, str]] = []
    # Twice as many as there are threads, whatever they take: no thread has to wait for another.
    few = max(2 * _cores(), int(_BLOCK_BYTES / 2**30 / max(recipe.gigabytes(1), 1e-9)))
    outcomes = attempts(recipe.read, [path for _, path in files], min(_BLOCK, few))
    for (_, path), outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, Failure):
            failed.append((path, outcome.reason))
        elif not failed:  # the rest is read only to count what else is wrong
            yield outcome
    if failed:
        raise UserError(complaint(failed, len(files), recipe.what, recipe.remedy))


def _in_memory(files: Files, recipe: Recipe) -> Array:
    """The decoded files as one array."""
    arrays = np.empty((len(files), *recipe.shape), recipe.dtype)
    for row, array in enumerate(_decoded(files, recipe)):
        arrays[row] = array
    return arrays


def _in_cache(files: Files, recipe: Recipe, folder: Path) -> Tensor | FileArrays:
    """The decoded files in a file of this folder, written unless it is there already."""
    path = folder / f"{recipe.what.replace(' ', '-')}-{_digest(files, recipe)}.npy"
    try:
        return _mapped(path, len(files), recipe)
    except (OSError, ValueError):
        pass  # not there, or spoilt
    if not _has_room(folder, files, recipe):
        return _on_demand(files, recipe)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_abandoned_drafts(path)
        _write(path, files, recipe)
    except OSError as error:
        raise UserError(
            f"decoded images cannot be kept in the cache folder {folder} ({error.strerror or error});"
            " give a folder that can be written to, or more memory_gb"
        ) from None
    return _mapped(path, len(files), recipe)


def _in_temporary_file(files: Files, recipe: Recipe) -> Tensor | FileArrays:
    """The decoded files in a file without a name, gone when the tensor is."""
    if not _has_room(Path(tempfile.gettempdir()), files, recipe):
        return _on_demand(files, recipe)
    with tempfile.TemporaryDirectory(prefix="ducats-") as folder:
        path = Path(folder) / "decoded.npy"
        _write(path, files, recipe)
        return _mapped(path, len(files), recipe)  # an open mapping outlives the name


def _has_room(folder: Path, files: Files, recipe: Recipe) -> bool:
    """Whether the decoded files fit on the disk where this folder is, or would be made."""
    return recipe.gigabytes(len(files)) <= free_disk_gb(folder) - SPARE_GB


def _on_demand(files: Files, recipe: Recipe) -> FileArrays:
    """The files as they are, each at least begun: what is no image is found now, not hours later."""
    each(recipe.begin, [path for _, path in files], recipe.what, recipe.remedy)
    return FileArrays(files, recipe)


def _write(path: Path, files: Files, recipe: Recipe) -> None:
    """Decode into a NumPy file, which has its name only once it is whole."""

    def write(file: IO[bytes]) -> None:
        descr = np.lib.format.dtype_to_descr(recipe.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (len(files), *recipe.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for array in _decoded(files, recipe):
            file.write(array.tobytes())

    write_atomically(path, write)


def _mapped(path: Path, count: int, recipe: Recipe) -> Tensor:
    """A file of arrays as a tensor, read by the system when looked at."""
    arrays = np.lib.format.open_memmap(path, mode="r")
    shape = (count, *recipe.shape)
    if arrays.shape != shape or arrays.dtype != recipe.dtype:
        raise ValueError(f"{path} holds {arrays.dtype} {arrays.shape}, not {recipe.dtype} {shape}")
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors and says so. Read-only is meant: a writable shared mapping would
        # let a slip spoil the cache for good, and a private one is refused when larger than the memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(arrays)


def _drop_abandoned_drafts(path: Path) -> None:
    """Remove what killed decodes of the same files left; a draft that still grows is someone's."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - draft.stat().st_mtime > 3600:
            draft.unlink(missing_ok=True)


def _digest(files: Files, recipe: Recipe) -> str:
    """A name for these files by this recipe; another one as soon as any file was touched."""
    # The path is in it because archives may give one time to files of one name and size.
    described = [(key, str(path.absolute()), *_size_and_time(path)) for key, path in files]
    text = json.dumps([recipe.identity, (len(files), *recipe.shape), described])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Bytes and time of the last change; a missing file is left to the decoder to complain about."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
