"""What is kept of a stream of scores: the best so far, in bounded memory, whatever the order they come in.

A pool of any size passes by in chunks, in one process or in many. Each process keeps the best of its share,
and the best of what all kept are the best of the pool: no sort ever sees more than what is kept and a chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.errors import UserError

Array = NDArray[Any]
SLACK = 4096  # rows that may wait beyond twice those kept, before the worst are dropped


@dataclass(frozen=True)
class Scored:
    """Some samples, and what the model said of them: arrays of one length."""

    key: Array  # unique: str or bytes as objects, or fixed-width bytes; ties go to the lower one
    number: Array  # int64, place in the pool
    columns: Mapping[str, Array]  # by name; (n,) floats to choose by, or anything else of n rows

    def __post_init__(self) -> None:
        lengths = {len(self.key), len(self.number), *map(len, self.columns.values())}
        if len(lengths) > 1:
            raise ValueError(f"columns of one table have {sorted(lengths)} rows")

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, index: Array) -> "Scored":
        """Some rows: by numbers, in their order, or by a mask."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Scored(self.key[index], self.number[index], columns)


def joined(parts: Sequence[Scored]) -> Scored:
    """Several tables one below the other; those without rows may lack columns."""
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
    """The k rows of a stream that are highest in a column, ties to the lower key; exact, in O(k + chunk).

    Args:
        column: whose highest are kept.
        k: how many.

    >>> keeper = Keeper("entropy", 2)
    >>> for key, value in (("b", 0.5), ("c", 0.1), ("a", 0.5)):
    ...     keeper.add(Scored(np.array([key]), np.zeros(1, int), {"entropy": np.array([value])}))
    >>> keeper.best().key.tolist()
    ['a', 'b']
    """

    def __init__(self, column: str, k: int) -> None:
        if k < 0:
            raise ValueError(f"{k} rows cannot be kept")
        self._column, self._k = column, k
        self._held: list[Scored] = []
        self._count = 0
        self._floor: Any = None  # what a row must reach, once k are kept

    def add(self, some: Scored) -> None:
        """Let some rows of the stream pass by."""
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
        """The best so far, highest first."""
        return _ordered(self._drop(), self._column)

    def _drop(self) -> Scored:
        """Drop all but the k best."""
        everyone = joined(self._held)
        if len(everyone) > self._k:
            everyone = everyone[_highest(everyone.columns[self._column], everyone.key, self._k)]
        if len(everyone) == self._k > 0:
            self._floor = everyone.columns[self._column].min()
        self._held, self._count = [everyone] if len(everyone) else [], len(everyone)
        return everyone


def merge(kept: Iterable[Scored], column: str, k: int) -> Scored:
    """The k best of several tables, highest first, ties to the lower key; their order does not matter.

    Raises:
        UserError: A key is there twice: the same sample was scored in two places.
    """
    keeper = Keeper(column, k)
    for some in kept:
        keeper.add(some)
    found = keeper.best()
    twice = np.flatnonzero(found.key[1:] == found.key[:-1])
    if len(twice):
        raise UserError(
            f"the sample {name_of(found.key[twice[0]])} was scored twice: give each sample a key of its own"
        )
    return found


def two_rounds(kept: Scored, first: str, second: str, kappa_k: int, k: int) -> Scored:
    """DUC's query: of the ``kappa_k`` rows highest in one column, the ``k`` highest in another."""
    if kappa_k < k:
        raise ValueError(f"{kappa_k} rows pass the first round, and {k} are wanted of them")
    return merge([merge([kept], first, kappa_k)], second, k)


def name_of(key: Any) -> str:
    """A key as text."""
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _checked(some: Scored, column: str) -> Array:
    score = some.columns[column] if len(some) else np.empty(0)
    wrong = np.flatnonzero(np.isnan(score))
    if len(wrong):
        raise UserError(
            f"the {column} of {name_of(some.key[wrong[0]])} is not a number: the model or the formula that "
            "scored it is broken; train the model again"
        )
    return score


def _highest(score: Array, key: Array, k: int) -> Array:
    """Indices of the k highest of more than k rows, in no order; ties go to the lower key."""
    floor = np.partition(score, len(score) - k)[len(score) - k]
    sure, level = np.flatnonzero(score > floor), np.flatnonzero(score == floor)
    wanted = k - len(sure)
    if wanted < len(level):
        level = level[np.argsort(key[level], kind="stable")[:wanted]]
    return np.concatenate([sure, level])


def _ordered(some: Scored, column: str) -> Scored:
    """The same rows, highest first; keys are compared only where scores are equal."""
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
