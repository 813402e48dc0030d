"""Pool of tar files in the WebDataset layout, read sequentially."""

import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from typing import IO

from ducats.data.streaming.filesystem import FileSystem, describe_excess
from ducats.data.streaming.pool import (
    Pool,
    PoolSample,
    check_chunk,
    escape_non_utf8,
    failing_reader,
    make_sample,
)
from ducats.utils.image_files import is_image_name

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_HEADER_BYTES = 2**20  # of a member: its name, its attributes and the holes of a sparse file
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "lzma"}  # first bytes: Python module
MAX_SAMPLES_PER_SHARD = 2**32  # indices reserved for each shard; an index does not depend on earlier shards


class ShardPool(Pool):
    """Samples of tar files; consecutive members with the same stem form one sample.

    A stem is the name up to the first dot after the last ``/``. The image of a sample is its first member
    with an image suffix; other members are skipped. Keys are ``shard.tar/member``. A batch never contains
    images of two shards. If there are at least as many shards as chunks, whole shards are distributed;
    otherwise blocks of samples are, and each chunk reads through every shard.

    Args:
        shards: pairs of the shard's name, as used in keys, and its path.
        max_sample_bytes: larger members are unreadable samples.
    """

    def __init__(
        self, name: str, filesystem: FileSystem, shards: Sequence[tuple[str, str]], max_sample_bytes: int
    ) -> None:
        self.name, self._max_bytes = name, max_sample_bytes
        self._filesystem, self._shards = filesystem, list(shards)

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[Iterable[PoolSample]]:
        """Yield blocks of every ``n_chunks``-th shard, or of all shards if they are fewer than the chunks."""
        check_chunk(chunk, n_chunks, block_size)
        whole_shards = len(self._shards) >= n_chunks
        for shard in range(chunk, len(self._shards), n_chunks) if whole_shards else range(len(self._shards)):
            chunk_args = (0, 1) if whole_shards else (chunk, n_chunks)
            # Blocks are assigned from the shard's own index, so a truncated shard does not shift others.
            samples = self._samples(shard, partial(_is_in_chunk, shard, block_size, *chunk_args))
            wanted = (
                (position // block_size, sample)
                for position, sample in enumerate(samples)
                if sample is not None
            )
            for _, block in groupby(wanted, key=itemgetter(0)):
                yield map(itemgetter(1), block)

    def count_samples(self) -> int:
        """Count the samples by reading through every shard."""
        return sum(1 for shard in range(len(self._shards)) for _ in self._samples(shard, lambda _: False))

    def _samples(self, shard: int, is_wanted: Callable[[int], bool]) -> Iterator[PoolSample | None]:
        """Yield a shard's samples; None for unwanted ones, of which only the last byte is read.

        A read error in a shard yields one more sample, which is unreadable. Every chunk that meets the error
        reports it: a remote file system may fail for one chunk only, and only that chunk loses the rest.
        """
        (name, path), position, previous_stem, has_image = self._shards[shard], 0, None, False
        try:
            with self._filesystem.open(path) as file, _open_tar(reader := _BoundedReader(file)) as tar:
                while (member := reader.next_member(tar)) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # tarfile would otherwise keep all members in memory
                    inner = member.name.removeprefix("./")
                    file_name = inner.rsplit("/", 1)[-1]
                    if not member.isfile() or file_name.startswith("."):
                        continue
                    if (stem := _stem(inner)) != previous_stem:
                        previous_stem, has_image = stem, False
                    if has_image or not is_image_name(file_name):
                        continue
                    has_image, in_chunk = True, is_wanted(position)
                    is_too_large = member.size > self._max_bytes
                    # Read at least the last byte: every chunk must find a truncation at the same position.
                    is_read = in_chunk and not is_too_large
                    data = _read_member(tar, member, 0 if is_read else max(0, member.size - 1))
                    read = (
                        failing_reader(describe_excess(self._max_bytes, member.size))
                        if is_too_large
                        else partial(bytes, data)
                    )
                    pool_index = shard * MAX_SAMPLES_PER_SHARD + position
                    yield make_sample(f"{name}/{inner}", pool_index, read, len(data)) if in_chunk else None
                    del data, read  # the sample is in use; do not keep its content while the next one is read
                    position += 1
                _check_end(tar)
        except Exception as error:  # decompression and remote file systems raise errors of any type
            reason = f"after {position} images: {_error_reason(error)}"
            yield PoolSample(
                escape_non_utf8(name), shard * MAX_SAMPLES_PER_SHARD + position, failing_reader(reason)
            )


class _LargeHeaderError(tarfile.ReadError):
    pass


class _BoundedReader:
    """The decompressed bytes of an archive, for ``tarfile``.

    ``tarfile`` reads the headers of a member as a whole, and they can be of any size. Here, they may have
    ``MAX_HEADER_BYTES``.
    """

    def __init__(self, file: IO[bytes]) -> None:
        start = file.read(max(map(len, _COMPRESSIONS)))
        file.seek(0)
        module = next((module for magic, module in _COMPRESSIONS.items() if start.startswith(magic)), None)
        self._file: IO[bytes] = file if module is None else import_module(module).open(file)
        self._header_bytes: int | None = MAX_HEADER_BYTES  # that may still be read; None: not in a header
        self._offset = -1  # of the end of the last member

    def next_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        """Return the next member of the archive."""
        self._header_bytes = MAX_HEADER_BYTES
        member = tar.next()
        self._header_bytes = None
        if (
            member is not None and tar.offset <= self._offset
        ):  # a negative size: it would come again, for ever
            raise tarfile.ReadError("the archive has a corrupt header")
        self._offset = tar.offset
        return member

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        if self._header_bytes is not None:
            if not 0 <= size <= self._header_bytes:
                raise _LargeHeaderError(f"the headers of a member have more than {MAX_HEADER_BYTES} bytes")
            self._header_bytes -= size
        return self._file.read(size)

    def seek(self, position: int) -> int:
        """Move to a position."""
        return self._file.seek(position)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Return whether ``seek`` works."""
        return self._file.seekable()


def _open_tar(reader: _BoundedReader) -> tarfile.TarFile:
    try:
        return tarfile.TarFile(fileobj=reader, mode="r")  # type: ignore[arg-type] # has all it needs
    except _LargeHeaderError:
        raise
    except (tarfile.TarError, EOFError) as error:
        raise tarfile.ReadError("not a tar file") from error


def _error_reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, start: int) -> bytes:
    """Read a member from a byte offset; raise if it is truncated."""
    file = tar.extractfile(member)
    assert file is not None
    file.seek(start)
    data = file.read()
    if len(data) < member.size - start:
        raise tarfile.ReadError("the archive is truncated")
    return data


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise if the archive lacks its closing zero block, which tarfile does not check."""
    file = tar.fileobj
    assert file is not None
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("the archive is truncated or has a corrupt header")


def _stem(name: str) -> str:
    """Return the part of a member's name that identifies its sample.

    >>> _stem("train/v1.2/0001.seg.png")
    'train/v1.2/0001'
    """
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.split('.', 1)[0]}"


def _is_in_chunk(shard: int, block_size: int, chunk: int, n_chunks: int, position: int) -> bool:
    return (shard + position // block_size) % n_chunks == chunk
