"""Storage of decoded files: in memory, in a memory-mapped file, or decoded on demand.

A ``Decoder`` describes how one file becomes an array (an image or a label map). An ``ArrayStore`` decides
where the arrays of all files are stored. Within `decode_on_first_use`, files whose pixels have a known digest
are not decoded before their pixels are read.
"""

import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from PIL import UnidentifiedImageError, __version__, features
from torch import Tensor

from ducats.data.domain import UnreadableFile
from ducats.data.embedding_cache import KEY_BYTES, EmbeddingCache, digest_pixels
from ducats.utils.errors import InvalidFileError, UserError
from ducats.utils.files import write_atomically
from ducats.utils.image_files import MissingRangeError, check_regular_file
from ducats.utils.progress import activity
from ducats.utils.resources import available_cores, free_disk_gb, free_memory_gb

KeyedPaths = Sequence[tuple[str, Path]]  # keys and paths
_Array = NDArray[Any]
_S = TypeVar("_S")
_T = TypeVar("_T")

_BLOCK_FILES = 256  # files decoded at a time; bounds the memory of results not yet stored
_BLOCK_BYTES = 2**28  # the same bound in bytes, for large arrays
_MAX_LISTED_FILES = 5  # unreadable files listed in an error
_DEFAULT_MEMORY_GB = 4.0  # used if the free memory is unknown
_CODECS = (
    "jpg",
    "libjpeg_turbo",
    "jpg_2000",
    "libtiff",
    "webp",
    "avif",
)  # libraries that Pillow decodes with
RESERVED_DISK_GB = 1.0  # disk space left free for checkpoints


@dataclass(frozen=True)
class Decoder:
    """How one file becomes one array."""

    read: Callable[[Path], _Array]  # returns shape and dtype below; any exception means an unreadable file
    check: Callable[[Path], object]  # cheap check that the file is readable
    shape: tuple[int, ...]  # of the array of one file
    dtype: "np.dtype[Any]"
    noun: str  # plural noun for messages and cache file names, such as "images"
    cache_key: object  # JSON value that changes when the same file would give another array
    remedy: str  # advice in the error about unreadable files

    def gigabytes(self, count: int) -> float:
        """Return the gigabytes (2**30 bytes) that the arrays of ``count`` files take."""
        return count * prod(self.shape) * self.dtype.itemsize / 2**30


class DecodedFiles(NamedTuple):
    """Arrays of files, one row per file, and why some files cannot be read; their rows have no meaning."""

    arrays: "Tensor | LazyFileArrays | FirstUseArrays"
    failures: dict[int, str]  # reason by row

    def readable_rows(self) -> Tensor:
        """Return the rows of the files that can be read, ascending."""
        return torch.tensor(
            [row for row in range(len(self.arrays)) if row not in self.failures], dtype=torch.int64
        )


_file_index: ContextVar[EmbeddingCache | None] = ContextVar("file_index", default=None)


@contextmanager
def decode_on_first_use(cache: EmbeddingCache | None) -> Iterator[None]:
    """Let each `ArrayStore` made within look up the digests of images by the content of their files.

    For images that are embedded: with known digests, their embeddings are found without decoding them.

    Args:
        cache: holds the index; None or one of size 0: decode all files at once.
    """
    token = _file_index.set(cache if cache is not None and cache.max_bytes else None)
    try:
        yield
    finally:
        _file_index.reset(token)


class ArrayStore:
    """Store of decoded arrays. Several sets of files share one memory budget, first come, first served.

    Args:
        requires_range: Whether an image that needs ``data.params.range`` is an error rather than skipped, as
            in the data of a run, where it can be set.
    """

    def __init__(
        self, cache: str | Path | None, memory_gb: float | None, *, requires_range: bool = False
    ) -> None:
        self._cache = None if cache is None else Path(cache).expanduser()
        self._remaining_gb = memory_budget(memory_gb)
        self._requires_range = requires_range
        self._decodes_on_demand = False
        self._file_index = _file_index.get()

    def load(self, files: KeyedPaths, decoder: Decoder) -> DecodedFiles:
        """Decode files into memory, a cache file or a temporary file, or return them to decode on demand.

        Raises:
            UserError: No file can be read, or the content of one is invalid.
        """
        size_gb = decoder.gigabytes(len(files))
        if not files:
            return DecodedFiles(torch.from_numpy(_load_in_memory(files, decoder)[0]), {})
        with activity(f"reading {len(files)} {decoder.noun}", total=len(files)) as reading:

            def read(path: Path) -> _Array:
                try:
                    return self._apply(decoder.read, path)
                finally:
                    reading.advance()

            reported = replace(decoder, read=read, check=partial(self._apply, decoder.check))
            fits_in_memory = size_gb <= self._remaining_gb
            self._remaining_gb -= size_gb if fits_in_memory else 0.0
            if self._file_index is not None and (
                fits_in_memory or self._fits_in_temporary_file(files, decoder)
            ):
                known = _find_digests(files, decoder, self._file_index)
                reading.advance(sum(digest is not None for digest in known.pixels))
                decoded = _load_unknown(files, reported, known, in_memory=fits_in_memory)
            elif fits_in_memory:
                arrays, failures = _load_in_memory(files, reported)
                decoded = DecodedFiles(torch.from_numpy(arrays), failures)
            elif self._cache is not None:
                decoded = _load_cached(files, reported, self._cache)
            else:
                decoded = _load_temporary(files, reported)
        self._decodes_on_demand |= isinstance(decoded.arrays, LazyFileArrays)
        return decoded

    def _fits_in_temporary_file(self, files: KeyedPaths, decoder: Decoder) -> bool:
        return self._cache is None and _fits_on_disk(Path(tempfile.gettempdir()), files, decoder)

    def _apply(self, fn: Callable[[Path], _T], path: Path) -> _T:
        """Apply ``fn`` to a file; a missing range becomes an error of the settings if it is required."""
        try:
            return fn(path)
        except MissingRangeError as error:
            if self._requires_range:
                raise InvalidFileError(str(error)) from None
            raise

    def warn_if_on_demand(self) -> None:
        """Warn if files have to be decoded on demand."""
        if self._decodes_on_demand:
            warnings.warn(
                f"decoded images do not fit in memory or in {self._cache or tempfile.gettempdir()}; they are "
                "decoded again for every batch, which is slower. Set data.params.cache to a folder on a "
                "larger disk, or reduce data.params.size",
                stacklevel=3,
            )


class LazyFileArrays:
    """Arrays that are decoded on each access, used if neither memory nor disk has room for them.

    Implements ``domain.Pixels`` and ``domain.LabelMaps``, as a tensor does.
    """

    def __init__(self, files: KeyedPaths, decoder: Decoder) -> None:
        self.shape = torch.Size((len(files), *decoder.shape))
        self.dtype: torch.dtype = torch.from_numpy(np.empty(0, decoder.dtype)).dtype
        self.ndim = len(self.shape)
        self._files = tuple(files)
        self._decoder = decoder

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        indices = torch.arange(len(self))[index]
        files = [self._files[i] for i in indices.flatten().tolist()]
        arrays, failures = _load_in_memory(files, self._decoder)
        if failures:  # damaged, but with an intact header, which was checked at the start
            unreadable = [UnreadableFile(files[row][1], reason) for row, reason in failures.items()]
            raise UserError(
                unreadable_message(unreadable, len(files), self._decoder.noun, self._decoder.remedy)
            )
        return torch.from_numpy(arrays).view(*indices.shape, *self._decoder.shape)


class FirstUseArrays:
    """Arrays with known digests, which are decoded when they are first read.

    Implements ``domain.Pixels``, as a tensor does.

    Args:
        arrays: its other rows are written when they are read.
        digests: of the array of each file.
        is_decoded: whether its row needs no decoding.
    """

    def __init__(
        self,
        files: KeyedPaths,
        decoder: Decoder,
        arrays: _Array,
        digests: Sequence[bytes],
        is_decoded: Sequence[bool],
    ) -> None:
        self._files, self._decoder, self._digests = tuple(files), decoder, tuple(digests)
        self._arrays, self._tensor, self._is_decoded = arrays, torch.from_numpy(arrays), list(is_decoded)
        self.shape, self.dtype, self.ndim = self._tensor.shape, self._tensor.dtype, self._tensor.ndim

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int | slice | Tensor, /) -> Tensor:
        wanted = dict.fromkeys(torch.arange(len(self))[index].flatten().tolist())
        rows = [row for row in wanted if not self._is_decoded[row]]
        for row, outcome in zip(rows, _try_rows(self._files, self._decoder, rows), strict=True):
            path = self._files[row][1]
            if isinstance(outcome, ReadFailure):
                unreadable = [UnreadableFile(path, outcome.reason)]
                raise UserError(
                    unreadable_message(unreadable, len(rows), self._decoder.noun, self._decoder.remedy)
                )
            if digest_pixels(outcome) != self._digests[row]:
                raise UserError(f"{path} has changed since the start; run the command again")
            self._arrays[row], self._is_decoded[row] = outcome, True
        return self._tensor[index]

    def digest(self, index: int) -> bytes:
        """Return the digest of an image's pixels."""
        return self._digests[index]


class _KnownDigests(NamedTuple):
    """What an index of files knows."""

    files: list[bytes | None]  # None: the file cannot be read
    pixels: list[bytes | None]  # None: unknown
    add: Callable[[Sequence[bytes], Sequence[bytes]], None]  # digests of files and of their pixels


def _find_digests(files: KeyedPaths, decoder: Decoder, cache: EmbeddingCache) -> _KnownDigests:
    """Look up the pixels' digests of files by their content and all else that determines their pixels."""
    codecs = [name for name in _CODECS if name in {*features.codecs, *features.modules, *features.features}]
    versions = {"Pillow": __version__, **{name: features.version(name) for name in codecs}}
    space = cache.open_file_index([decoder.cache_key, decoder.shape, versions])
    outcomes = try_files(_digest_file, [path for _, path in files])
    digests = [None if isinstance(outcome, ReadFailure) else outcome for outcome in outcomes]
    found = np.zeros((len(files), KEY_BYTES), np.uint8)
    is_known = space.lookup([digest or bytes(KEY_BYTES) for digest in digests], found)
    pixels = [row.tobytes() if known else None for row, known in zip(found, is_known, strict=True)]

    def add(new_files: Sequence[bytes], new_pixels: Sequence[bytes]) -> None:
        rows = np.frombuffer(b"".join(new_pixels), np.uint8).reshape(-1, KEY_BYTES)
        if len(rows) and cache.make_room(2 * rows.nbytes, [space]):
            space.append(new_files, rows)

    return _KnownDigests(digests, pixels, add)


def _digest_file(path: Path) -> bytes:
    check_regular_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=KEY_BYTES)).digest()


def _load_unknown(
    files: KeyedPaths, decoder: Decoder, known: _KnownDigests, *, in_memory: bool
) -> DecodedFiles:
    """Decode the files whose pixels have no known digest, and add them to the index."""
    arrays = _allocate((len(files), *decoder.shape), decoder.dtype, in_memory=in_memory)
    pixels, failures = list(known.pixels), dict[int, ReadFailure]()
    unknown = [row for row, digest in enumerate(pixels) if digest is None]
    for row, outcome in zip(unknown, _try_rows(files, decoder, unknown), strict=True):
        if isinstance(outcome, ReadFailure):
            failures[row] = outcome
        else:
            arrays[row], pixels[row] = outcome, digest_pixels(outcome)
    _check_failures(files, failures, decoder)
    new = [row for row in unknown if row not in failures]
    after = try_files(_digest_file, [files[row][1] for row in new])
    same = [  # a file may have been replaced while it was decoded
        (digest, pixels[row] or b"")
        for row, digest in zip(new, after, strict=True)
        if not isinstance(digest, ReadFailure) and digest == known.files[row]
    ]
    known.add([digest for digest, _ in same], [digest for _, digest in same])
    is_decoded = [digest is None for digest in known.pixels]
    digests = [digest or b"" for digest in pixels]
    return DecodedFiles(FirstUseArrays(files, decoder, arrays, digests, is_decoded), _reasons(failures))


def _allocate(shape: tuple[int, ...], dtype: "np.dtype[Any]", *, in_memory: bool) -> _Array:
    """Return an array in memory or in a temporary file that is freed with it; both grow when written."""
    if in_memory:
        return np.empty(shape, dtype)
    with tempfile.TemporaryDirectory(prefix="ducats-", ignore_cleanup_errors=True) as folder:
        return np.memmap(Path(folder) / "decoded", dtype, "w+", shape=shape)


def memory_budget(memory_gb: float | None) -> float:
    """Return the gigabytes to hold in memory: as given, or this process's share of half the free memory."""
    if memory_gb is not None:
        return memory_gb
    free = free_memory_gb()
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    processes = torch.distributed.get_world_size() if is_distributed else 1
    return _DEFAULT_MEMORY_GB if free is None else free / 2 / processes


def map_files(fn: Callable[[Path], _T], paths: Sequence[Path], noun: str, remedy: str) -> list[_T]:
    """Apply ``fn`` to each file in parallel.

    Raises:
        UserError: ``fn`` failed on some files; the message covers all of them.
    """
    results, failures = [], []
    for path, outcome in zip(paths, try_files(fn, paths), strict=True):
        if isinstance(outcome, ReadFailure):
            failures.append(UnreadableFile(path, outcome.reason))
        else:
            results.append(outcome)
    if failures:
        raise UserError(unreadable_message(failures, len(paths), noun, remedy))
    return results


@dataclass(frozen=True)
class ReadFailure:
    """Reason why a file cannot be read."""

    reason: str
    is_invalid: bool = False  # it can be decoded, but must not be used
    is_temporary: bool = False  # it may be readable later, without being modified


def try_files(
    fn: Callable[[Path], _T], paths: Sequence[Path], block: int = _BLOCK_FILES
) -> Iterator[_T | ReadFailure]:
    """Apply ``fn`` to each file with one thread per core; yield results and failures in order.

    Pillow and NumPy release the interpreter lock most of the time.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(available_cores()) as threads:
        # Pillow warns about odd metadata and large images without naming the file. Unreadable files are
        # reported as errors anyway.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for start in range(0, len(paths), block):
            yield from threads.map(lambda path: try_file(fn, path), paths[start : start + block])


def unreadable_message(failures: Sequence[UnreadableFile], count: int, noun: str, remedy: str) -> str:
    """Return an error message that covers all unreadable files."""
    listed = ", ".join(f"{path} ({reason})" for path, reason in failures[:_MAX_LISTED_FILES])
    rest = f" and {len(failures) - _MAX_LISTED_FILES} more" if len(failures) > _MAX_LISTED_FILES else ""
    return f"{len(failures)} of {count} {noun} cannot be read: {listed}{rest}; {remedy}"


def check_all_readable(unreadable: Sequence[UnreadableFile], n_readable: int) -> None:
    """Raise if images were skipped because a file is unreadable (``--strict``)."""
    if unreadable:
        remedy = "remove or replace them, or omit --strict (data.strict) to skip them"
        count = n_readable + len(unreadable)
        raise UserError(unreadable_message(unreadable, count, "images", remedy))


def try_file(fn: Callable[[_S], _T], file: _S) -> _T | ReadFailure:
    """Apply ``fn`` to a file; return a ``ReadFailure`` if it raises."""
    try:
        return fn(file)
    except FileNotFoundError:
        return ReadFailure("no such file")
    except IsADirectoryError:
        return ReadFailure("it is a folder")
    except PermissionError:
        return ReadFailure("no permission to read it", is_temporary=True)
    except UnidentifiedImageError:
        return ReadFailure("not an image")
    except InvalidFileError as error:
        return ReadFailure(str(error), is_invalid=True)
    except Exception as error:  # Pillow's decoders raise many types of exceptions on corrupt files
        # Pillow's own OSErrors about corrupt files have no errno.
        is_temporary = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        return ReadFailure(str(error) or type(error).__name__, is_temporary=is_temporary)


def _decode_files(files: KeyedPaths, decoder: Decoder, failures: dict[int, ReadFailure]) -> Iterator[_Array]:
    """Yield the array of each file in order, zeros for an unreadable one, which is added to ``failures``.

    Raises:
        UserError: At the end, if the content of a file is invalid or no file can be read.
    """
    blank = np.zeros(decoder.shape, decoder.dtype)
    for row, outcome in enumerate(_try_rows(files, decoder, range(len(files)))):
        if isinstance(outcome, ReadFailure):
            failures[row] = outcome
        yield blank if isinstance(outcome, ReadFailure) else outcome
    _check_failures(files, failures, decoder)


def _try_rows(files: KeyedPaths, decoder: Decoder, rows: Sequence[int]) -> Iterator[_Array | ReadFailure]:
    """Decode some of the files; yield arrays and failures in order."""
    # At least two files per thread, regardless of their size, to keep all threads busy.
    block = max(2 * available_cores(), int(_BLOCK_BYTES / 2**30 / max(decoder.gigabytes(1), 1e-9)))
    return try_files(decoder.read, [files[row][1] for row in rows], min(_BLOCK_FILES, block))


def _check_failures(files: KeyedPaths, failures: dict[int, ReadFailure], decoder: Decoder) -> None:
    """Raise if files are invalid, which are then named first, or if none can be read."""
    ordered = sorted(failures.items(), key=lambda found: not found[1].is_invalid)
    if ordered and (ordered[0][1].is_invalid or len(failures) == len(files)):
        unreadable = [UnreadableFile(files[row][1], failure.reason) for row, failure in ordered]
        raise UserError(unreadable_message(unreadable, len(files), decoder.noun, decoder.remedy))


def _load_in_memory(files: KeyedPaths, decoder: Decoder) -> tuple[_Array, dict[int, str]]:
    """Decode files into one array; return it and the failures."""
    arrays, failures = np.empty((len(files), *decoder.shape), decoder.dtype), dict[int, ReadFailure]()
    for i, array in enumerate(_decode_files(files, decoder, failures)):
        arrays[i] = array
    return arrays, _reasons(failures)


def _reasons(failures: dict[int, ReadFailure]) -> dict[int, str]:
    return {row: failure.reason for row, failure in failures.items()}


def _load_cached(files: KeyedPaths, decoder: Decoder, folder: Path) -> DecodedFiles:
    """Map the decoded files from a file in the cache folder, which is written first if missing."""
    path = folder / f"{decoder.noun.replace(' ', '-')}-{_cache_digest(files, decoder)}.npy"
    try:
        return _map_arrays(path, len(files), decoder)
    except (OSError, ValueError):
        pass  # missing or corrupt
    if not _fits_on_disk(folder, files, decoder):
        return _open_on_demand(files, decoder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale_partials(path)
        failures = _write_arrays(path, files, decoder)
    except OSError as error:
        raise UserError(
            f"decoded images cannot be written to the cache folder {folder} ({error.strerror or error});"
            " give a writable folder, or increase memory_gb"
        ) from None
    decoded = _map_arrays(path, len(files), decoder)
    if any(failure.is_temporary for failure in failures.values()):
        path.unlink(missing_ok=True)  # so that the next run tries again; the mapping stays valid
    return decoded


def _load_temporary(files: KeyedPaths, decoder: Decoder) -> DecodedFiles:
    """Map the decoded files from an unlinked temporary file, which is freed with the tensor."""
    if not _fits_on_disk(Path(tempfile.gettempdir()), files, decoder):
        return _open_on_demand(files, decoder)
    with tempfile.TemporaryDirectory(prefix="ducats-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "decoded.npy"
        _write_arrays(path, files, decoder)
        return _map_arrays(path, len(files), decoder)  # the mapping stays valid after the file is unlinked


def _fits_on_disk(folder: Path, files: KeyedPaths, decoder: Decoder) -> bool:
    """Return whether the decoded files fit on the disk of this folder, which need not exist yet."""
    return decoder.gigabytes(len(files)) <= free_disk_gb(folder) - RESERVED_DISK_GB


def _open_on_demand(files: KeyedPaths, decoder: Decoder) -> DecodedFiles:
    """Return files to decode on demand, after a quick check of each: errors appear now, not hours later."""
    outcomes = enumerate(try_files(decoder.check, [path for _, path in files]))
    failures = {row: outcome for row, outcome in outcomes if isinstance(outcome, ReadFailure)}
    _check_failures(files, failures, decoder)
    return DecodedFiles(LazyFileArrays(files, decoder), _reasons(failures))


def _write_arrays(path: Path, files: KeyedPaths, decoder: Decoder) -> dict[int, ReadFailure]:
    """Decode files into a NumPy file, written atomically; failures, if any, follow the arrays as JSON.

    Returns:
        The failures by row.
    """
    failures = dict[int, ReadFailure]()

    def write(file: IO[bytes]) -> None:
        descr = np.lib.format.dtype_to_descr(decoder.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (len(files), *decoder.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for array in _decode_files(files, decoder, failures):
            file.write(array.tobytes())
        if failures:
            file.write(json.dumps(_reasons(failures)).encode("ascii"))

    write_atomically(path, write)
    return failures


def _map_arrays(path: Path, count: int, decoder: Decoder) -> DecodedFiles:
    """Memory-map a file of arrays as a tensor, and read the failures that follow them."""
    arrays = np.lib.format.open_memmap(path, mode="r")
    shape = (count, *decoder.shape)
    if arrays.shape != shape or arrays.dtype != decoder.dtype:
        raise ValueError(f"{path} holds {arrays.dtype} {arrays.shape}, not {decoder.dtype} {shape}")
    with path.open("rb") as file:
        file.seek(arrays.offset + arrays.nbytes)
        failures = json.loads(file.read() or b"{}")
    with warnings.catch_warnings():
        # PyTorch has no read-only tensors and warns. The mapping is read-only on purpose: with a writable
        # shared one, a bug could corrupt the cache, and a private one fails if it is larger than the memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(arrays)
    return DecodedFiles(tensor, {int(row): reason for row, reason in failures.items()})


def _remove_stale_partials(path: Path) -> None:
    """Remove partial files left by killed processes; a recent one may still be in use."""
    for found in path.parent.glob(f".{path.name}.*.part"):
        if time.time() - found.stat().st_mtime > 3600:
            found.unlink(missing_ok=True)


def _cache_digest(files: KeyedPaths, decoder: Decoder) -> str:
    """Return a digest of the decoder and the files; it changes when any file is modified."""
    # The path is included, because files from archives may agree in name, size and time.
    entries = [(key, str(path.absolute()), *_size_and_time(path)) for key, path in files]
    text = json.dumps([decoder.cache_key, (len(files), *decoder.shape), entries])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return size and modification time; a missing file is reported later, by the decoder."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
