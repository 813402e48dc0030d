"""Pools: samples in a fixed order, split into blocks that are distributed over chunks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import NamedTuple, NoReturn

from ducats.data.streaming.filesystem import FileSystem
from ducats.utils.image_files import is_image_name


class PoolSample(NamedTuple):
    """One image of a pool, not yet read."""

    key: str  # unique and stable: a relative path, or the key in the table
    pool_index: int  # position in the pool; increases in listing order, possibly with gaps
    read: Callable[[], bytes]  # return the file's content; any exception marks the sample unreadable
    n_bytes: int = 0  # of the content, if the sample holds it in memory


class Pool(ABC):
    """Samples in an order that is the same on every machine.

    A pool is first cut into blocks, and each block then belongs to exactly one of ``n_chunks`` chunks. A
    batch therefore holds the same images for any number of processes.
    """

    name: str  # as the user entered it
    n_samples: int | None = None  # number of samples; None if unknown without listing the pool

    @abstractmethod
    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[Iterable[PoolSample]]:
        """Yield the blocks of chunk ``chunk``, of up to ``block_size`` samples each, in order.

        A block may be read from the pool while it is iterated: iterate it once, before the next block.
        """

    @abstractmethod
    def count_samples(self) -> int:
        """Return the number of samples, listing the pool if necessary."""

    def samples(self, chunk: int, n_chunks: int) -> Iterator[PoolSample]:
        """Yield the samples of chunk ``chunk``, in order."""
        for block in self.blocks(chunk, n_chunks, 1):
            yield from block


def blocks_of_chunk(
    samples: Iterable[PoolSample], chunk: int, n_chunks: int, block_size: int
) -> Iterator[list[PoolSample]]:
    """Yield every ``n_chunks``-th block, starting with block ``chunk``."""
    check_chunk(chunk, n_chunks, block_size)
    stream = iter(samples)
    blocks = iter(lambda: list(islice(stream, block_size)), [])
    yield from islice(blocks, chunk, None, n_chunks)


def check_chunk(chunk: int, n_chunks: int, block_size: int) -> None:
    """Raise ValueError for an invalid chunk or block size."""
    if not 0 <= chunk < n_chunks or block_size < 1:
        raise ValueError(f"invalid chunk {chunk} of {n_chunks} with block size {block_size}")


def make_sample(key: str, pool_index: int, read: Callable[[], bytes], n_bytes: int = 0) -> PoolSample:
    """Return a sample whose key is a file name; a name that is not UTF-8 makes it unreadable."""
    if key.isascii() or escape_non_utf8(key) == key:
        return PoolSample(key, pool_index, read, n_bytes)
    return PoolSample(
        escape_non_utf8(key), pool_index, failing_reader("the name is not UTF-8; rename the file")
    )


def escape_non_utf8(name: str) -> str:
    r"""Replace bytes of a name that are not valid UTF-8 with escapes.

    >>> escape_non_utf8("caf\udce9.png")
    'caf\\xe9.png'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def failing_reader(reason: str) -> Callable[[], bytes]:
    """Return a ``read`` function that raises OSError."""

    def fail() -> NoReturn:
        raise OSError(reason)

    return fail


class FolderPool(Pool):
    """All images below a folder, with the same keys in the same order as in `ducats predict`.

    Hidden files, hidden folders and files without an image suffix are skipped. A folder that cannot be read
    and a name that is not UTF-8 each count as an unreadable sample.
    """

    def __init__(self, name: str, filesystem: FileSystem, path: str, max_sample_bytes: int) -> None:
        self.name, self._max_bytes = name, max_sample_bytes
        self._filesystem, self._path = filesystem, path.rstrip("/") or "/"

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        """Yield every ``n_chunks``-th block of the listing."""
        return blocks_of_chunk(self._samples(), chunk, n_chunks, block_size)

    def count_samples(self) -> int:
        """Count the samples by listing all names."""
        return sum(1 for _ in self._samples())

    def _samples(self) -> Iterator[PoolSample]:
        indices = count()
        return (make_sample(key, next(indices), read) for key, read in self._walk(self._path, ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
        try:
            entries = self._filesystem.list_folder(folder)
        except Exception as error:  # remote file systems raise errors of any type
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield prefix or self.name, failing_reader(f"the folder cannot be read: {reason}")
            return
        for entry in entries:
            key, path = f"{prefix}{entry.name}", f"{folder.rstrip('/')}/{entry.name}"
            if entry.is_folder:
                yield from self._walk(path, f"{key}/")
            elif is_image_name(entry.name):
                yield key, partial(self._filesystem.read, path, self._max_bytes)
