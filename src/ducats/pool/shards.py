"""Tar files of images, as WebDataset lays them out, read from front to back."""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ducats.pictures import is_image
from ducats.pool.places import Place
from ducats.pool.sample import Pool, Sample, check_part, named, spelt, unreadable

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
EACH = 2**32  # numbers that a shard has for its samples: no shard needs to know how long those before it are


class Shards(Pool):
    """Samples of tar files: members that follow each other with one stem are one sample.

    A stem is a name up to the first dot after the last ``/``. The sample's image is its first member that is
    an image by its suffix; its other members are passed over. Keys are ``shard.tar/member``. A batch never
    holds images of two shards. With at least as many shards as parts, whole shards are shared out; otherwise
    blocks of samples are, and each part walks over every shard.

    Args:
        name: as it was given.
        place: where the shards are.
        shards: name in keys, and path, of each.
    """

    def __init__(self, name: str, place: Place, shards: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._place, self._shards = place, list(shards)

    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Blocks of every ``world``-th shard; of all shards, where these are fewer than the parts."""
        check_part(rank, world, size)
        whole = len(self._shards) >= world
        for shard in range(rank, len(self._shards), world) if whole else range(len(self._shards)):
            share = (0, 1) if whole else (rank, world)
            block = list[Sample]()
            # Dealt from the shard's own number on: where one breaks off, others are shared out all the same.
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
        """By a walk over the members of every shard."""
        return sum(1 for shard in range(len(self._shards)) for _ in self._samples(shard, _none))

    def _samples(self, shard: int, wanted: Callable[[int], bool]) -> Iterator[Sample | None]:
        """A shard's samples; None for one that is not wanted, of which only the last byte is read.

        A shard that is broken off is one more sample, which cannot be read. Whoever meets the break tells it:
        a store may fail one part and not another, and what follows is lost to that one alone.
        """
        (name, path), place, before, found = self._shards[shard], 0, None, False
        try:
            with self._place.open(path) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # or it would hold them all
                    inner = member.name.removeprefix("./")
                    file_name = inner.rsplit("/", 1)[-1]
                    if not member.isfile() or file_name.startswith("."):
                        continue
                    if (stem := _stem(inner)) != before:
                        before, found = stem, False
                    if found or not is_image(file_name):
                        continue
                    found, ours = True, wanted(place)
                    # Of others the last byte: each part must find the break at the same place.
                    data = _data(tar, member, 0 if ours else max(0, member.size - 1))
                    number = shard * EACH + place
                    yield named(f"{name}/{inner}", number, partial(bytes, data)) if ours else None
                    place += 1
                _check_end(tar)
        except Exception as error:  # decompression and stores raise nearly anything
            why = f"after {place} images: {_why(error)}"
            yield Sample(spelt(name), shard * EACH + place, unreadable(why))


def _why(error: Exception) -> str:
    # The reader's own words are a line for each compression that it tried.
    words = (str(error) or type(error).__name__).splitlines()[0]
    return "not a tar file" if words.startswith("file could not be opened") else words


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo, start: int) -> bytes:
    """What is in a file from one byte on; refuse one that is cut off."""
    file = tar.extractfile(member)
    assert file is not None
    file.seek(start)
    data = file.read()
    if len(data) < member.size - start:
        raise tarfile.ReadError("the archive is cut off")
    return data


def _check_end(tar: tarfile.TarFile) -> None:
    """Refuse an archive that stops without its closing zeros, which the reader takes for a good end."""
    file = tar.fileobj
    assert file is not None
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("the archive is cut off, or a header in it is spoilt")


def _stem(name: str) -> str:
    """What names a sample.

    >>> _stem("train/v1.2/0001.seg.png")
    'train/v1.2/0001'
    """
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.split('.', 1)[0]}"


def _ours(shard: int, size: int, rank: int, world: int, place: int) -> bool:
    return (shard + place // size) % world == rank


def _none(_place: int) -> bool:
    return False
