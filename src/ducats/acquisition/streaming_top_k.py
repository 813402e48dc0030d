"""Exact top-k of a stream of scores in bounded memory, independent of the order of the stream.

A pool of any size is processed in chunks, by one process or several. Each process keeps the top k of its
share; the top k of all shares together is the top k of the pool. No sort covers more than the kept rows and a
chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.utils.errors import UserError

_Array = NDArray[Any]
MIN_BUFFER_ROWS = 4096  # minimum number of rows buffered beyond k before the lowest are dropped


@dataclass(frozen=True)
class ScoredSamples:
    """Some samples and their scores: arrays of one length."""

    key: _Array  # unique: str or bytes objects, or fixed-width bytes; ties go to the lower key
    pool_index: _Array  # int64, index in the pool
    columns: Mapping[str, _Array]  # by name; (n,) floats to rank by, or other arrays of n rows

    def __post_init__(self) -> None:
        lengths = {len(self.key), len(self.pool_index), *map(len, self.columns.values())}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, index: _Array) -> "ScoredSamples":
        """Return some rows, by indices in their order or by a mask."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return ScoredSamples(self.key[index], self.pool_index[index], columns)


def concat_samples(tables: Sequence[ScoredSamples]) -> ScoredSamples:
    """Concatenate tables; empty tables may lack columns."""
    non_empty = [table for table in tables if len(table)] or list(tables[:1])
    if not non_empty:
        return ScoredSamples(np.empty(0, object), np.empty(0, np.int64), {})
    if len(non_empty) == 1:
        return non_empty[0]
    columns = {
        name: np.concatenate([table.columns[name] for table in non_empty]) for name in non_empty[0].columns
    }
    return ScoredSamples(
        np.concatenate([table.key for table in non_empty]),
        np.concatenate([table.pool_index for table in non_empty]),
        columns,
    )


class StreamingTopK:
    """The k highest rows of a stream by one column, ties to the lower key; exact, in O(k + chunk) memory.

    Args:
        column: name of the column to rank by.
        k: number of rows to keep.

    >>> selector = StreamingTopK("entropy", 2)
    >>> for key, value in (("b", 0.5), ("c", 0.1), ("a", 0.5)):
    ...     selector.add(ScoredSamples(np.array([key]), np.zeros(1, int), {"entropy": np.array([value])}))
    >>> selector.top_k().key.tolist()
    ['a', 'b']
    """

    def __init__(self, column: str, k: int) -> None:
        if k < 0:
            raise ValueError(f"k must not be negative, got {k}")
        self._column, self._k = column, k
        self._buffer: list[ScoredSamples] = []
        self._buffered = 0
        self._threshold: Any = None  # lowest value that can still enter, once k rows are kept

    def add(self, samples: ScoredSamples) -> None:
        """Add some rows of the stream."""
        score = _checked_scores(samples, self._column)
        if self._threshold is not None:
            samples = samples[score >= self._threshold]
        if len(samples) == 0 or self._k == 0:
            return
        self._buffer.append(samples)
        self._buffered += len(samples)
        if self._buffered > self._k + max(self._k, MIN_BUFFER_ROWS):
            self._prune()

    def top_k(self) -> ScoredSamples:
        """Return the top k so far, highest first."""
        return _sorted_samples(self._prune(), self._column)

    def _prune(self) -> ScoredSamples:
        """Drop all rows but the top k."""
        kept = concat_samples(self._buffer)
        if len(kept) > self._k:
            kept = kept[_top_indices(kept.columns[self._column], kept.key, self._k)]
        if len(kept) == self._k > 0:
            self._threshold = kept.columns[self._column].min()
        self._buffer, self._buffered = [kept] if len(kept) else [], len(kept)
        return kept


def merge_top_k(tables: Iterable[ScoredSamples], column: str, k: int) -> ScoredSamples:
    """Return the top k of several tables, highest first, ties to the lower key, in any order of tables.

    Raises:
        UserError: two samples with the same score have the same key, such as one sample scored twice.
    """
    selector = StreamingTopK(column, k)
    for samples in tables:
        selector.add(samples)
    merged = selector.top_k()
    duplicates = np.flatnonzero(merged.key[1:] == merged.key[:-1])
    if len(duplicates):
        duplicate = key_text(merged.key[duplicates[0]])
        raise UserError(f"two samples of the pool have the key {duplicate!r}; make the keys unique")
    return merged


def select_in_two_rounds(
    samples: ScoredSamples, first_column: str, second_column: str, kappa_k: int, k: int
) -> ScoredSamples:
    """Return DUC's picks: of the ``kappa_k`` highest in the first column, the ``k`` highest in the second."""
    if kappa_k < k:
        raise ValueError(f"kappa_k ({kappa_k}) must be at least k ({k})")
    return merge_top_k([merge_top_k([samples], first_column, kappa_k)], second_column, k)


def key_text(key: Any) -> str:
    """Return a key as text."""
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _checked_scores(samples: ScoredSamples, column: str) -> _Array:
    score = samples.columns[column] if len(samples) else np.empty(0)
    wrong = np.flatnonzero(np.isnan(score))
    if len(wrong):
        raise UserError(
            f"the {column} of {key_text(samples.key[wrong[0]])} is NaN: the model or the formula of the "
            "score is broken; train the model again"
        )
    return score


def _top_indices(score: _Array, key: _Array, k: int) -> _Array:
    """Return the indices of the k highest of more than k rows, unordered; ties go to the lower key."""
    threshold = np.partition(score, len(score) - k)[len(score) - k]
    above, tied = np.flatnonzero(score > threshold), np.flatnonzero(score == threshold)
    wanted = k - len(above)
    if wanted < len(tied):
        tied = tied[np.argsort(key[tied], kind="stable")[:wanted]]
    return np.concatenate([above, tied])


def _sorted_samples(samples: ScoredSamples, column: str) -> ScoredSamples:
    """Sort the rows, highest first; keys are compared only where scores are equal."""
    if len(samples) == 0:
        return samples
    score = samples.columns[column]
    order = np.argsort(-score, kind="stable")
    score = score[order]
    is_group_start = np.append(True, score[1:] != score[:-1])
    tied = np.flatnonzero(~(is_group_start & np.append(is_group_start[1:], True)))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((samples.key[rows], np.cumsum(is_group_start)[tied]))]
    return samples[order]
