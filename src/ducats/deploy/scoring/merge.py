"""Merge the results of chunks, one at a time, in memory that does not depend on their number."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ducats.acquisition.streaming_top_k import ScoredSamples, concat_samples, merge_top_k
from ducats.deploy.scoring.chunk import ChunkResult
from ducats.deploy.scoring.files import load_chunk
from ducats.utils.errors import UserError


class MergedChunks(NamedTuple):
    """Top candidates of all chunks, and the counts of each chunk."""

    candidates: ScoredSamples  # best first
    labelled: ScoredSamples  # samples labelled by the run; empty unless the query uses them
    unreadable: list[tuple[str, str]]  # keys and reasons, sorted by key
    chunks: list[ChunkResult]  # counts, times and memory only; their tables are empty
    n_failures: int  # unreadable samples, summed over chunks; several may report the same truncated shard

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return sum(chunk.n_samples for chunk in self.chunks) - (self.n_failures - len(self.unreadable))

    @property
    def n_excluded(self) -> int:
        """Number of samples labelled by the run."""
        return sum(chunk.n_excluded for chunk in self.chunks)


def missing_chunks(files: Sequence[Path]) -> list[int]:
    """Return the indices of chunks whose file is missing or corrupt."""
    return [chunk for chunk, path in enumerate(files) if load_chunk(path) is None]


def merge_chunks(files: Sequence[Path], n_candidates: int) -> MergedChunks:
    """Merge all chunks and keep the top candidates; only these and one chunk are in memory at a time.

    Raises:
        UserError: A chunk cannot be read, or two chunks have scored the same sample.
    """
    chunks, labelled, unreadable, n_failures = list[ChunkResult](), list[ScoredSamples](), dict[str, str](), 0

    def tables() -> Iterator[ScoredSamples]:
        nonlocal n_failures
        for path in files:
            result = load_chunk(path)
            if result is None:
                raise UserError(f"{path} is corrupt; delete it and run the same command again")
            labelled.append(result.labelled)
            unreadable.update(result.unreadable)
            n_failures += len(result.unreadable)
            chunks.append(
                result._replace(candidates=concat_samples([]), labelled=concat_samples([]), unreadable=[])
            )
            yield result.candidates

    candidates = merge_top_k(tables(), "first", n_candidates)
    return MergedChunks(candidates, concat_samples(labelled), sorted(unreadable.items()), chunks, n_failures)
