"""Interface of pools: samples in a fixed order, split into blocks that are distributed over chunks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, NoReturn


class Sample(NamedTuple):
    """One image of a pool, not yet read."""

    key: str  # unique and stable: a relative path, or the key in the table
    number: int  # position in the pool; increases in listing order, possibly with gaps
    read: Callable[[], bytes]  # return the file's content; any exception marks the sample unreadable


class Pool(ABC):
    """Samples in an order that is the same on every machine.

    A pool is first cut into blocks, and each block then belongs to exactly one of ``world`` chunks. A batch
    therefore holds the same images for any number of processes.
    """

    name: str  # as the user entered it
    count: int | None = None  # number of samples; None if unknown without listing the pool

    @abstractmethod
    def blocks(self, rank: int, world: int, size: int) -> Iterator[list[Sample]]:
        """Yield the blocks of chunk ``rank``, of up to ``size`` samples each, in order."""

    @abstractmethod
    def counted(self) -> int:
        """Return the number of samples, listing the pool if necessary."""

    def parts(self, rank: int, world: int) -> Iterator[Sample]:
        """Yield the samples of chunk ``rank``, in order."""
        for block in self.blocks(rank, world, 1):
            yield from block


def shared_out(samples: Iterable[Sample], rank: int, world: int, size: int) -> Iterator[list[Sample]]:
    """Yield every ``world``-th block, starting with block ``rank``."""
    check_part(rank, world, size)
    stream = iter(samples)
    blocks = iter(lambda: list(islice(stream, size)), [])
    yield from islice(blocks, rank, None, world)


def check_part(rank: int, world: int, size: int) -> None:
    """Raise ValueError for an invalid chunk or block size."""
    if not 0 <= rank < world or size < 1:
        raise ValueError(f"invalid chunk {rank} of {world} with block size {size}")


def named(key: str, number: int, read: Callable[[], bytes]) -> Sample:
    """Return a sample whose key is a file name; a name that is not UTF-8 makes it unreadable."""
    if key.isascii() or spelt(key) == key:
        return Sample(key, number, read)
    return Sample(spelt(key), number, unreadable("the name is not UTF-8; rename the file"))


def spelt(name: str) -> str:
    r"""Replace bytes of a name that are not valid UTF-8 with escapes.

    >>> spelt("caf\udce9.png")
    'caf\\xe9.png'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unreadable(why: str) -> Callable[[], bytes]:
    """Return a ``read`` function that raises OSError."""

    def refuse() -> NoReturn:
        raise OSError(why)

    return refuse
