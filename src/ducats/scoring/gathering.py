"""What the parts of a pool kept comes together: one part at a time, so that their number costs no memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ducats.errors import UserError
from ducats.scoring.keeping import load_part
from ducats.scoring.part import Result
from ducats.selection import Scored, joined, merge


class Gathered(NamedTuple):
    """The best of all parts, and their numbers."""

    kept: Scored  # best first
    known: Scored  # rows whose labels were bought already, if the query looks at these
    unreadable: list[tuple[str, str]]  # keys, and why, by key
    parts: list[Result]  # seen, excluded, seconds and memory alone: their tables are empty
    told: int  # failures of all parts; of a shard that breaks off, each may tell

    @property
    def seen(self) -> int:
        """Samples in all."""
        return sum(part.seen for part in self.parts) - (self.told - len(self.unreadable))

    @property
    def excluded(self) -> int:
        """Samples that the run bought."""
        return sum(part.excluded for part in self.parts)


def missing_of(files: Sequence[Path]) -> list[int]:
    """Numbers of the parts that are not there, or damaged."""
    return [rank for rank, path in enumerate(files) if load_part(path) is None]


def gather(files: Sequence[Path], keep: int) -> Gathered:
    """Read all parts and keep the best; in the memory of what is kept and one part, whatever their number.

    Raises:
        UserError: A part cannot be read, or two parts have scored the same sample.
    """
    parts, known, unreadable, told = list[Result](), list[Scored](), dict[str, str](), 0

    def tables() -> Iterator[Scored]:
        nonlocal told
        for path in files:
            result = load_part(path)
            if result is None:
                raise UserError(f"{path} cannot be read: remove it, and the same command scores it again")
            known.append(result.known)
            unreadable.update(result.unreadable)
            told += len(result.unreadable)
            parts.append(result._replace(kept=joined([]), known=joined([]), unreadable=[]))
            yield result.kept

    kept = merge(tables(), "first", keep)
    return Gathered(kept, joined(known), sorted(unreadable.items()), parts, told)
