"""What is known about a benchmark without looking at its files: domains, tasks, counts, where to get it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from ducats.errors import UserError

Split = Literal["all", "train", "test"]  # of a domain's images
Role = Literal["source", "target", "test"]  # what a task does with them


@dataclass(frozen=True)
class Place:
    """One domain."""

    short: str  # in tasks: "Ar"
    name: str  # its folder, and its name in sentences: "Art"
    also: tuple[str, ...] = ()  # what else it is called in tasks


@dataclass(frozen=True)
class Count:
    """How many images a whole copy has."""

    total: int
    classes: int | None = None  # None: not every class need be there
    of_class: Mapping[str, int] = field(default_factory=dict)  # empty: only the total is known


@dataclass(frozen=True)
class Listed:
    """The images of a domain, or of one of its lists, none of them decoded."""

    where: str  # for sentences: "the folder /data/amazon"
    files: Sequence[tuple[str, Path]]  # keys and paths
    labels: Sequence[str]  # a class each
    numbers: Mapping[str, int] = field(default_factory=dict)  # of classes, where a list gives them


Reader = Callable[[Path, Place, Split], Listed | None]  # None: it is not there


@dataclass(frozen=True)
class Benchmark:
    """A data set of several domains with one set of classes."""

    title: str
    places: tuple[Place, ...]
    classes: int
    published: str  # where to get it
    layout: str  # what is expected in its folder, a few lines
    counts: Mapping[tuple[str, Split], Count]  # by a domain's short name
    read: Reader | None = None  # None: its images are not files of their own
    held_out: bool = False  # whether each domain has a train and a test list
    only: tuple[str, ...] = ()  # tasks, if not every domain is adapted to every other

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task, as source-target."""
        return self.only or tuple(f"{a.short}-{b.short}" for a, b in permutations(self.places, 2))

    def spell(self, task: Any) -> str | None:
        """The usual name of a task, however it was written; None if there is no such task."""
        return self._spellings().get(squash(task)) if isinstance(task, str) else None

    def ends(self, task: Any) -> tuple[Place, Place]:
        """Source and target of a task."""
        usual = self.spell(task)
        if usual is None:
            raise UserError(f"{self.title} has no task {task!r}; there are: {', '.join(self.tasks)}")
        source, target = (self._place(short) for short in usual.split("-"))
        return source, target

    def sides(self, task: Any) -> dict[Role, tuple[Place, Split]]:
        """Which images play which role in a task.

        Without held-out lists, source and target are whole domains, and nothing is left for a test.
        """
        source, target = self.ends(task)
        if not self.held_out:
            return {"source": (source, "all"), "target": (target, "all")}
        return {"source": (source, "train"), "target": (target, "train"), "test": (target, "test")}

    def expected(self, task: Any) -> dict[Role, tuple[str, Count]]:
        """A name and the known counts for each role of a task."""
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
        """Tasks by what is left of every way to write them."""
        spellings = {}
        for task in self.tasks:
            source, target = (self._place(short) for short in task.split("-"))
            for one in (source.short, source.name, *source.also):
                for two in (target.short, target.name, *target.also):
                    spellings.update({squash(f"{one}{between}{two}"): task for between in ("", "2", "to")})
        return spellings


def column(images: Mapping[str, Sequence[int]], index: int) -> Count:
    """The counts of one domain from a table of classes by domains."""
    of_class = {name: row[index] for name, row in images.items()}
    return Count(sum(of_class.values()), len(of_class), of_class)


def squash(name: str) -> str:
    """What two spellings of a name have in common.

    >>> squash("Real World") == squash("real_world") == squash("RealWorld")
    True
    """
    return re.sub(r"[\s_>→-]", "", name).lower()
