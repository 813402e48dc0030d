"""Pool of tar files in the WebDataset layout, read sequentially."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ducats.image_files import is_image_name
from ducats.pool.places import Place
from ducats.pool.sample import Pool, Sample, check_part, named, spelt, unreadable

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
EACH = 2**32  # indices reserved for each shard, so that an index does not depend on earlier shards


class Shards(Pool):
    """Samples of tar files; consecutive members with the same stem form one sample.

    A stem is the name up to the first dot after the last ``/``. The image of a sample is its first member
    with an image suffix; other members are skipped. Keys are ``shard.tar/member``. A batch never contains
    images of two shards. If there are at least as many shards as chunks, whole shards are distributed;
    otherwise blocks of samples are, and each chunk reads through every shard.

    Args:
        name: pool as the user entered it.
        shards: pairs of the shard's name, as used in keys, and its path.
    """

    def __init__(self, name: str, place: Place, shards: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._place, self._shards = place, list(shards)

    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Yield blocks of every ``world``-th shard, or of all shards if they are fewer than the chunks."""
        check_part(rank, world, size)
        whole = len(self._shards) >= world
        for shard in range(rank, len(self._shards), world) if whole else range(len(self._shards)):
            share = (0, 1) if whole else (rank, world)
            block = list[Sample]()
            # Blocks are assigned from the shard's own index, so a truncated shard does not shift others.
            samples = self._samples(shard, partial(_ours, shard, size, *share))
            for count, sample in enumerate(samples, start=1):
                if sample is not None:
                    block.append(sample)
                if count % size == 0 and block:
                    yield block
                    block = []
            if block:
                yield block

    def counted(self) -> int:
        """Count the samples by reading through every shard."""
        return sum(1 for shard in range(len(self._shards)) for _ in self._samples(shard, _none))

    def _samples(self, shard: int, wanted: Callable[[int], bool]) -> Iterator[Sample | None]:
        """Yield a shard's samples; None for unwanted ones, of which only the last byte is read.

        A read error in a shard yields one more sample, which is unreadable. Every chunk that meets the error
        reports it: a remote file system may fail for one chunk only, and only that chunk loses the rest.
        """
        (name, path), place, before, found = self._shards[shard], 0, None, False
        try:
            with self._place.open(path) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # tarfile would otherwise keep all members in memory
                    inner = member.name.removeprefix("./")
                    file_name = inner.rsplit("/", 1)[-1]
                    if not member.isfile() or file_name.startswith("."):
                        continue
                    if (stem := _stem(inner)) != before:
                        before, found = stem, False
                    if found or not is_image_name(file_name):
                        continue
                    found, ours = True, wanted(place)
                    # Read at least the last byte: every chunk must find a truncation at the same position.
                    data = _data(tar, member, 0 if ours else max(0, member.size - 1))
                    number = shard * EACH + place
                    yield named(f"{name}/{inner}", number, partial(bytes, data)) if ours else None
                    place += 1
                _check_end(tar)
        except Exception as error:  # decompression and remote file systems raise errors of any type
            why = f"after {place} images: {_why(error)}"
            yield Sample(spelt(name), shard * EACH + place, unreadable(why))


def _why(error: Exception) -> str:
    # tarfile's message has one line for each compression that it tried.
    words = (str(error) or type(error).__name__).splitlines()[0]
    return "not a tar file" if words.startswith("file could not be opened") else words


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo, start: int) -> bytes:
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


def _ours(shard: int, size: int, rank: int, world: int, place: int) -> bool:
    return (shard + place // size) % world == rank


def _none(_place: int) -> bool:
    return False
