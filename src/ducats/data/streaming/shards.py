"""Pool of tar files in the WebDataset layout, read sequentially."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ducats.data.streaming.filesystem import FileSystem
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
MAX_SAMPLES_PER_SHARD = 2**32  # indices reserved for each shard; an index does not depend on earlier shards


class ShardPool(Pool):
    """Samples of tar files; consecutive members with the same stem form one sample.

    A stem is the name up to the first dot after the last ``/``. The image of a sample is its first member
    with an image suffix; other members are skipped. Keys are ``shard.tar/member``. A batch never contains
    images of two shards. If there are at least as many shards as chunks, whole shards are distributed;
    otherwise blocks of samples are, and each chunk reads through every shard.

    Args:
        shards: pairs of the shard's name, as used in keys, and its path.
    """

    def __init__(self, name: str, filesystem: FileSystem, shards: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._filesystem, self._shards = filesystem, list(shards)

    def blocks(self, chunk: int, n_chunks: int, block_size: int) -> Iterator[list[PoolSample]]:
        """Yield blocks of every ``n_chunks``-th shard, or of all shards if they are fewer than the chunks."""
        check_chunk(chunk, n_chunks, block_size)
        whole_shards = len(self._shards) >= n_chunks
        for shard in range(chunk, len(self._shards), n_chunks) if whole_shards else range(len(self._shards)):
            chunk_args = (0, 1) if whole_shards else (chunk, n_chunks)
            block = list[PoolSample]()
            # Blocks are assigned from the shard's own index, so a truncated shard does not shift others.
            samples = self._samples(shard, partial(_is_in_chunk, shard, block_size, *chunk_args))
            for count, sample in enumerate(samples, start=1):
                if sample is not None:
                    block.append(sample)
                if count % block_size == 0 and block:
                    yield block
                    block = []
            if block:
                yield block

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
            with self._filesystem.open(path) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
                while (member := tar.next()) is not None:
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
                    # Read at least the last byte: every chunk must find a truncation at the same position.
                    data = _read_member(tar, member, 0 if in_chunk else max(0, member.size - 1))
                    pool_index = shard * MAX_SAMPLES_PER_SHARD + position
                    yield (
                        make_sample(f"{name}/{inner}", pool_index, partial(bytes, data)) if in_chunk else None
                    )
                    position += 1
                _check_end(tar)
        except Exception as error:  # decompression and remote file systems raise errors of any type
            reason = f"after {position} images: {_error_reason(error)}"
            yield PoolSample(
                escape_non_utf8(name), shard * MAX_SAMPLES_PER_SHARD + position, failing_reader(reason)
            )


def _error_reason(error: Exception) -> str:
    # tarfile's message has one line for each compression that it tried.
    message = (str(error) or type(error).__name__).splitlines()[0]
    return "not a tar file" if message.startswith("file could not be opened") else message


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
