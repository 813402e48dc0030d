"""Storage of decoded files: in memory, in a memory-mapped file, or decoded on demand.

A ``Recipe`` describes how one file becomes an array (an image or a label map). A ``Room`` decides where the
arrays of all files are stored.
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

Files = Sequence[tuple[str, Path]]  # keys and paths
Array = NDArray[Any]
S = TypeVar("S")
T = TypeVar("T")

_BLOCK = 256  # files decoded at a time; bounds the memory of results not yet stored
_BLOCK_BYTES = 2**28  # the same bound in bytes, for large arrays
_NAMED = 5  # unreadable files listed in an error
_MEMORY_GB = 4.0  # used if the free memory is unknown
SPARE_GB = 1.0  # disk space left free for checkpoints


@dataclass(frozen=True)
class Recipe:
    """How one file becomes one array."""

    read: Callable[[Path], Array]  # returns shape and dtype below; any exception means an unreadable file
    begin: Callable[[Path], object]  # cheap check that the file is readable
    shape: tuple[int, ...]  # of the array of one file
    dtype: "np.dtype[Any]"
    what: str  # plural noun for messages and cache file names, such as "images"
    identity: object  # JSON value that changes when the same file would give another array
    remedy: str  # advice in the error about unreadable files

    def gigabytes(self, count: int) -> float:
        """Return the gigabytes (2**30 bytes) that the arrays of ``count`` files take."""
        return count * prod(self.shape) * self.dtype.itemsize / 2**30


class Room:
    """Store of decoded arrays. Several sets of files share one memory budget, first come, first served."""

    def __init__(self, cache: str | Path | None, memory_gb: float | None) -> None:
        self._cache = None if cache is None else Path(cache).expanduser()
        self._left = allowance(memory_gb)
        self._on_demand = False

    def hold(self, files: Files, recipe: Recipe) -> "Tensor | FileArrays":
        """Decode files into memory, a cache file or a temporary file, or return them to decode on demand."""
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
        """Warn if files have to be decoded on demand."""
        if self._on_demand:
            warnings.warn(
                f"decoded images do not fit in memory or in {self._cache or tempfile.gettempdir()}; they are "
                "decoded again for every batch, which is slower. Set data.params.cache to a folder on a "
                "larger disk, or reduce data.params.size",
                stacklevel=3,
            )


class FileArrays:
    """Arrays that are decoded on each access, used if neither memory nor disk has room for them.

    Implements ``domain.Pixels`` and ``domain.Maps``, as a tensor does.
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
    """Return the gigabytes to hold in memory: as given, or this process's share of half the free memory."""
    if memory_gb is not None:
        return memory_gb
    free = free_memory_gb()
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if several else 1
    return _MEMORY_GB if free is None else free / 2 / processes


def each(work: Callable[[Path], T], paths: Sequence[Path], what: str, remedy: str) -> list[T]:
    """Apply ``work`` to each file in parallel.

    Raises:
        UserError: ``work`` failed on some files; the message covers all of them.
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
    """Reason why a file cannot be read."""

    reason: str


def attempts(work: Callable[[Path], T], paths: Sequence[Path], block: int = _BLOCK) -> Iterator[T | Failure]:
    """Apply ``work`` to each file with one thread per core; yield results and failures in order.

    Pillow and NumPy release the interpreter lock most of the time.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(_cores()) as threads:
        # Pillow warns about odd metadata and large images without naming the file. Unreadable files are
        # reported as errors anyway.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for start in range(0, len(paths), block):
            yield from threads.map(lambda path: attempt(work, path), paths[start : start + block])


def complaint(failed: Sequence[tuple[Path, str]], count: int, what: str, remedy: str) -> str:
    """Return an error message that covers all unreadable files."""
    named = ", ".join(f"{path} ({reason})" for path, reason in failed[:_NAMED])
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return f"{len(failed)} of {count} {what} cannot be read: {named}{more}; {remedy}"


def attempt(work: Callable[[S], T], file: S) -> T | Failure:
    """Apply ``work`` to a file; return a ``Failure`` if it raises."""
    try:
        return work(file)
    except FileNotFoundError:
        return Failure("no such file")
    except IsADirectoryError:
        return Failure("it is a folder")
    except PermissionError:
        return Failure("no permission to read it")
    except UnidentifiedImageError:
        return Failure("not an image")
    except Exception as error:  # Pillow's decoders raise many types of exceptions on corrupt files
        return Failure(str(error) or type(error).__name__)


def _cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decoded(files: Files, recipe: Recipe) -> Iterator[Array]:
    """Yield the array of each file in order; raise at the end if any file was unreadable."""
    failed: list[tuple[Path, str]] = []
    # At least two files per thread, regardless of their size, to keep all threads busy.
    few = max(2 * _cores(), int(_BLOCK_BYTES / 2**30 / max(recipe.gigabytes(1), 1e-9)))
    outcomes = attempts(recipe.read, [path for _, path in files], min(_BLOCK, few))
    for (_, path), outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, Failure):
            failed.append((path, outcome.reason))
        elif not failed:  # after a failure, the rest is read only to report other failures
            yield outcome
    if failed:
        raise UserError(complaint(failed, len(files), recipe.what, recipe.remedy))


def _in_memory(files: Files, recipe: Recipe) -> Array:
    """Decode files into one array."""
    arrays = np.empty((len(files), *recipe.shape), recipe.dtype)
    for row, array in enumerate(_decoded(files, recipe)):
        arrays[row] = array
    return arrays


def _in_cache(files: Files, recipe: Recipe, folder: Path) -> Tensor | FileArrays:
    """Map the decoded files from a file in the cache folder, which is written first if missing."""
    path = folder / f"{recipe.what.replace(' ', '-')}-{_digest(files, recipe)}.npy"
    try:
        return _mapped(path, len(files), recipe)
    except (OSError, ValueError):
        pass  # missing or corrupt
    if not _has_room(folder, files, recipe):
        return _on_demand(files, recipe)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_abandoned_drafts(path)
        _write(path, files, recipe)
    except OSError as error:
        raise UserError(
            f"decoded images cannot be written to the cache folder {folder} ({error.strerror or error});"
            " give a writable folder, or increase memory_gb"
        ) from None
    return _mapped(path, len(files), recipe)


def _in_temporary_file(files: Files, recipe: Recipe) -> Tensor | FileArrays:
    """Map the decoded files from an unlinked temporary file, which is freed with the tensor."""
    if not _has_room(Path(tempfile.gettempdir()), files, recipe):
        return _on_demand(files, recipe)
    with tempfile.TemporaryDirectory(prefix="ducats-") as folder:
        path = Path(folder) / "decoded.npy"
        _write(path, files, recipe)
        return _mapped(path, len(files), recipe)  # the mapping stays valid after the file is unlinked


def _has_room(folder: Path, files: Files, recipe: Recipe) -> bool:
    """Return whether the decoded files fit on the disk of this folder, which need not exist yet."""
    return recipe.gigabytes(len(files)) <= free_disk_gb(folder) - SPARE_GB


def _on_demand(files: Files, recipe: Recipe) -> FileArrays:
    """Return files to decode on demand, after a quick check of each: errors appear now, not hours later."""
    each(recipe.begin, [path for _, path in files], recipe.what, recipe.remedy)
    return FileArrays(files, recipe)


def _write(path: Path, files: Files, recipe: Recipe) -> None:
    """Decode files into a NumPy file, which is written atomically."""

    def write(file: IO[bytes]) -> None:
        descr = np.lib.format.dtype_to_descr(recipe.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (len(files), *recipe.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for array in _decoded(files, recipe):
            file.write(array.tobytes())

    write_atomically(path, write)


def _mapped(path: Path, count: int, recipe: Recipe) -> Tensor:
    """Memory-map a file of arrays as a tensor."""
    arrays = np.lib.format.open_memmap(path, mode="r")
    shape = (count, *recipe.shape)
    if arrays.shape != shape or arrays.dtype != recipe.dtype:
        raise ValueError(f"{path} holds {arrays.dtype} {arrays.shape}, not {recipe.dtype} {shape}")
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors and warns. The mapping is read-only on purpose: with a writable
        # shared one, a bug could corrupt the cache, and a private one fails if it is larger than the memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(arrays)


def _drop_abandoned_drafts(path: Path) -> None:
    """Remove partial files left by killed processes; a recent one may still be in use."""
    for draft in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - draft.stat().st_mtime > 3600:
            draft.unlink(missing_ok=True)


def _digest(files: Files, recipe: Recipe) -> str:
    """Return a digest of the recipe and the files; it changes when any file is modified."""
    # The path is included, because files from archives may agree in name, size and time.
    described = [(key, str(path.absolute()), *_size_and_time(path)) for key, path in files]
    text = json.dumps([recipe.identity, (len(files), *recipe.shape), described])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return size and modification time; a missing file is reported later, by the decoder."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
