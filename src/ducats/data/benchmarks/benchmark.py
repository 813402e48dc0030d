"""Description of a benchmark: domains, tasks, image counts and where to get it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from ducats.errors import UserError

Split = Literal["all", "train", "test"]  # part of a domain
Role = Literal["source", "target", "test"]  # use of a part in a task


@dataclass(frozen=True)
class Place:
    """One domain of a benchmark."""

    short: str  # in task names, such as "Ar"
    name: str  # folder name and name in messages, such as "Art"
    also: tuple[str, ...] = ()  # aliases in task names


@dataclass(frozen=True)
class Count:
    """Number of images in a complete copy."""

    total: int
    classes: int | None = None  # None: some classes may be missing
    of_class: Mapping[str, int] = field(default_factory=dict)  # empty: only the total is published


@dataclass(frozen=True)
class Listed:
    """Image files of a domain or of one of its lists."""

    where: str  # for messages, such as "the folder /data/amazon"
    files: Sequence[tuple[str, Path]]  # keys and paths
    labels: Sequence[str]  # class name per file
    numbers: Mapping[str, int] = field(default_factory=dict)  # class indices, if a list gives them


Reader = Callable[[Path, Place, Split], Listed | None]  # None: not found


@dataclass(frozen=True)
class Benchmark:
    """Data set of several domains that share their classes."""

    title: str
    places: tuple[Place, ...]
    classes: int
    published: str  # where to get it
    layout: str  # expected folder contents, in a few lines
    counts: Mapping[tuple[str, Split], Count]  # by short name and split
    read: Reader | None = None  # None: images are not separate files
    held_out: bool = False  # whether each domain has a train and a test split
    only: tuple[str, ...] = ()  # the tasks, if not every pair of domains is one

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, as ``source-target``."""
        return self.only or tuple(f"{a.short}-{b.short}" for a, b in permutations(self.places, 2))

    def spell(self, task: Any) -> str | None:
        """Return the canonical name of a task in any spelling; None if there is no such task."""
        return self._spellings().get(squash(task)) if isinstance(task, str) else None

    def ends(self, task: Any) -> tuple[Place, Place]:
        """Return source and target of a task."""
        usual = self.spell(task)
        if usual is None:
            raise UserError(f"{self.title} has no task {task!r}; its tasks are {', '.join(self.tasks)}")
        source, target = (self._place(short) for short in usual.split("-"))
        return source, target

    def sides(self, task: Any) -> dict[Role, tuple[Place, Split]]:
        """Return domain and split for each role of a task.

        If the benchmark has no train and test lists, source and target are whole domains without a test set.
        """
        source, target = self.ends(task)
        if not self.held_out:
            return {"source": (source, "all"), "target": (target, "all")}
        return {"source": (source, "train"), "target": (target, "train"), "test": (target, "test")}

    def expected(self, task: Any) -> dict[Role, tuple[str, Count]]:
        """Return name and published counts for each role of a task."""
        return {
            role: (
                place.name if split == "all" else f"{place.name} ({split})",
                self.counts[place.short, split],
            )
            for role, (place, split) in self.sides(task).items()
        }

    def _place(self, short: str) -> Place:
        return next(place for place in self.places if place.short == short)

    def _spellings(self) -> dict[str, str]:
        """Map every normalised spelling to its task."""
        spellings = {}
        for task in self.tasks:
            source, target = (self._place(short) for short in task.split("-"))
            for one in (source.short, source.name, *source.also):
                for two in (target.short, target.name, *target.also):
                    spellings.update({squash(f"{one}{between}{two}"): task for between in ("", "2", "to")})
        return spellings


def column(images: Mapping[str, Sequence[int]], index: int) -> Count:
    """Return the counts of one domain from a table of classes by domains."""
    of_class = {name: row[index] for name, row in images.items()}
    return Count(sum(of_class.values()), len(of_class), of_class)


def squash(name: str) -> str:
    """Normalise a name: remove separators and ignore case.

    >>> squash("Real World") == squash("real_world") == squash("RealWorld")
    True
    """
    return re.sub(r"[\s_>→-]", "", name).lower()
