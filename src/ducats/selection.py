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

from ducats.errors import UserError

Array = NDArray[Any]
SLACK = 4096  # minimum number of rows buffered beyond k before the lowest are dropped


@dataclass(frozen=True)
class Scored:
    """Some samples and their scores: arrays of one length."""

    key: Array  # unique: str or bytes objects, or fixed-width bytes; ties go to the lower key
    number: Array  # int64, index in the pool
    columns: Mapping[str, Array]  # by name; (n,) floats to rank by, or other arrays of n rows

    def __post_init__(self) -> None:
        lengths = {len(self.key), len(self.number), *map(len, self.columns.values())}
        if len(lengths) > 1:
            raise ValueError(f"columns differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, index: Array) -> "Scored":
        """Return some rows, by indices in their order or by a mask."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Scored(self.key[index], self.number[index], columns)


def joined(parts: Sequence[Scored]) -> Scored:
    """Concatenate tables; empty tables may lack columns."""
    full = [part for part in parts if len(part)] or list(parts[:1])
    if not full:
        return Scored(np.empty(0, object), np.empty(0, np.int64), {})
    if len(full) == 1:
        return full[0]
    columns = {name: np.concatenate([part.columns[name] for part in full]) for name in full[0].columns}
    return Scored(
        np.concatenate([part.key for part in full]),
        np.concatenate([part.number for part in full]),
        columns,
    )


class Keeper:
    """The k highest rows of a stream by one column, ties to the lower key; exact, in O(k + chunk) memory.

    Args:
        column: name of the column to rank by.
        k: number of rows to keep.

    >>> keeper = Keeper("entropy", 2)
    >>> for key, value in (("b", 0.5), ("c", 0.1), ("a", 0.5)):
    ...     keeper.add(Scored(np.array([key]), np.zeros(1, int), {"entropy": np.array([value])}))
    >>> keeper.best_config().key.tolist()
    ['a', 'b']
    """

    def __init__(self, column: str, k: int) -> None:
        if k < 0:
            raise ValueError(f"k must not be negative, got {k}")
        self._column, self._k = column, k
        self._held: list[Scored] = []
        self._count = 0
        self._floor: Any = None  # lowest value that can still enter, once k rows are kept

    def add(self, some: Scored) -> None:
        """Add some rows of the stream."""
        score = _checked(some, self._column)
        if self._floor is not None:
            some = some[score >= self._floor]
        if len(some) == 0 or self._k == 0:
            return
        self._held.append(some)
        self._count += len(some)
        if self._count > self._k + max(self._k, SLACK):
            self._drop()

    def best(self) -> Scored:
        """Return the top k so far, highest first."""
        return _ordered(self._drop(), self._column)

    def _drop(self) -> Scored:
        """Drop all rows but the top k."""
        everyone = joined(self._held)
        if len(everyone) > self._k:
            everyone = everyone[_highest(everyone.columns[self._column], everyone.key, self._k)]
        if len(everyone) == self._k > 0:
            self._floor = everyone.columns[self._column].min()
        self._held, self._count = [everyone] if len(everyone) else [], len(everyone)
        return everyone


def merge(kept: Iterable[Scored], column: str, k: int) -> Scored:
    """Return the top k of several tables, highest first, ties to the lower key, in any order of tables.

    Raises:
        UserError: a key occurs twice, because the same sample was scored in two places.
    """
    keeper = Keeper(column, k)
    for some in kept:
        keeper.add(some)
    found = keeper.best()
    twice = np.flatnonzero(found.key[1:] == found.key[:-1])
    if len(twice):
        raise UserError(
            f"the sample {name_of(found.key[twice[0]])} was scored twice; give each sample a unique key"
        )
    return found


def two_rounds(kept: Scored, first: str, second: str, kappa_k: int, k: int) -> Scored:
    """DUC's query: of the ``kappa_k`` rows highest in ``first``, the ``k`` highest in ``second``."""
    if kappa_k < k:
        raise ValueError(f"kappa_k ({kappa_k}) must be at least k ({k})")
    return merge([merge([kept], first, kappa_k)], second, k)


def name_of(key: Any) -> str:
    """Return a key as text."""
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _checked(some: Scored, column: str) -> Array:
    score = some.columns[column] if len(some) else np.empty(0)
    wrong = np.flatnonzero(np.isnan(score))
    if len(wrong):
        raise UserError(
            f"the {column} of {name_of(some.key[wrong[0]])} is NaN: the model or the formula of the score is "
            "broken; train the model again"
        )
    return score


def _highest(score: Array, key: Array, k: int) -> Array:
    """Return the indices of the k highest of more than k rows, unordered; ties go to the lower key."""
    floor = np.partition(score, len(score) - k)[len(score) - k]
    sure, level = np.flatnonzero(score > floor), np.flatnonzero(score == floor)
    wanted = k - len(sure)
    if wanted < len(level):
        level = level[np.argsort(key[level], kind="stable")[:wanted]]
    return np.concatenate([sure, level])


def _ordered(some: Scored, column: str) -> Scored:
    """Sort the rows, highest first; keys are compared only where scores are equal."""
    if len(some) == 0:
        return some
    score = some.columns[column]
    order = np.argsort(-score, kind="stable")
    score = score[order]
    begins = np.append(True, score[1:] != score[:-1])
    tied = np.flatnonzero(~(begins & np.append(begins[1:], True)))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((some.key[rows], np.cumsum(begins)[tied]))]
    return some[order]
