"""What a pool is to whoever scores it: samples in a fixed order, in blocks that parts share out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, NoReturn


class Sample(NamedTuple):
    """One image of a pool, not read yet."""

    key: str  # unique and stable: a relative path, or a table's own name for it
    number: int  # place in the pool: rises in the order of the listing
    read: Callable[[], bytes]  # what is in its file; whatever it raises is the sample's fault


class Pool(ABC):
    """Samples in an order that is the same on every machine.

    A pool is cut into blocks before it is shared out, and each block belongs to exactly one of ``world``
    parts: so a batch holds the same images on any number of processes.
    """

    name: str  # as it was given
    count: int | None = None  # of samples, where that is known without a walk

    @abstractmethod
    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """One part's blocks of up to ``size`` samples, in order."""

    @abstractmethod
    def counted(self) -> int:
        """The number of samples, by a walk over their names if need be."""

    def parts(self, rank: int, world: int) -> Iterator[Sample]:
        """One part's samples, in order."""
        for block in self.blocks(rank, world, 1):
            yield from block


def shared_out(samples: Iterable[Sample], rank: int, world: int, size: int) -> Iterator[list[Sample]]:
    """Every ``world``-th block, from the one numbered ``rank`` on."""
    check_part(rank, world, size)
    stream = iter(samples)
    blocks = iter(lambda: list(islice(stream, size)), [])
    yield from islice(blocks, rank, None, world)


def check_part(rank: int, world: int, size: int) -> None:
    """Refuse a part that there cannot be."""
    if not 0 <= rank < world or size < 1:
        raise ValueError(f"part {rank} of {world}, in blocks of {size}")


def named(key: str, number: int, read: Callable[[], bytes]) -> Sample:
    """A sample by its file's name; it cannot be read if that is no text, for nobody could be told of it."""
    if key.isascii() or spelt(key) == key:
        return Sample(key, number, read)
    return Sample(spelt(key), number, unreadable("the name is not UTF-8; rename the file"))


def spelt(name: str) -> str:
    r"""A name as text: bytes of it that are no UTF-8 become escapes.

    >>> spelt("caf\udce9.png")
    'caf\\xe9.png'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unreadable(why: str) -> Callable[[], bytes]:
    """The ``read`` of what is known beforehand to be no image."""

    def refuse() -> NoReturn:
        raise OSError(why)

    return refuse
