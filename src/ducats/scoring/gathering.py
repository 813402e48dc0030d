"""Merge the results of chunks, one at a time, in memory that does not depend on their number."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ducats.errors import UserError
from ducats.scoring.keeping import load_part
from ducats.scoring.part import Result
from ducats.streaming_top_k import ScoredSamples, concat_samples, merge_top_k


class Gathered(NamedTuple):
    """Top candidates of all chunks, and the counts of each chunk."""

    kept: ScoredSamples  # best first
    known: ScoredSamples  # samples labelled by the run; empty unless the query uses them
    unreadable: list[tuple[str, str]]  # keys and reasons, sorted by key
    parts: list[Result]  # counts, times and memory only; their tables are empty
    told: int  # unreadable samples, summed over chunks; several may report the same truncated shard

    @property
    def seen(self) -> int:
        """Number of samples."""
        return sum(part.seen for part in self.parts) - (self.told - len(self.unreadable))

    @property
    def excluded(self) -> int:
        """Number of samples labelled by the run."""
        return sum(part.excluded for part in self.parts)


def missing_of(files: Sequence[Path]) -> list[int]:
    """Return the indices of chunks whose file is missing or corrupt."""
    return [rank for rank, path in enumerate(files) if load_part(path) is None]


def gather(files: Sequence[Path], keep: int) -> Gathered:
    """Merge all chunks and keep the top candidates; only these and one chunk are in memory at a time.

    Raises:
        UserError: A chunk cannot be read, or two chunks have scored the same sample.
    """
    parts, known, unreadable, told = list[Result](), list[ScoredSamples](), dict[str, str](), 0

    def tables() -> Iterator[ScoredSamples]:
        nonlocal told
        for path in files:
            result = load_part(path)
            if result is None:
                raise UserError(f"{path} is corrupt; delete it and run the same command again")
            known.append(result.known)
            unreadable.update(result.unreadable)
            told += len(result.unreadable)
            parts.append(result._replace(kept=concat_samples([]), known=concat_samples([]), unreadable=[]))
            yield result.kept

    kept = merge_top_k(tables(), "first", keep)
    return Gathered(kept, concat_samples(known), sorted(unreadable.items()), parts, told)
