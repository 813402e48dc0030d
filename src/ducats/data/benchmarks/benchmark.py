"""Description of a benchmark: domains, tasks, image counts and where to get it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from ducats.utils.errors import UserError

Split = Literal["all", "train", "test"]  # images of a domain
TaskRole = Literal["source", "target", "test"]  # use of a split in a task


@dataclass(frozen=True)
class DomainInfo:
    """One domain of a benchmark."""

    short_name: str  # in task names, such as "Ar"
    name: str  # folder name and name in messages, such as "Art"
    aliases: tuple[str, ...] = ()  # aliases in task names


@dataclass(frozen=True)
class ImageCount:
    """Number of images in a complete copy."""

    total: int
    classes: int | None = None  # None: some classes may be missing
    per_class: Mapping[str, int] = field(default_factory=dict)  # empty: only the total is published


@dataclass(frozen=True)
class FileList:
    """Image files of a domain or of one of its lists."""

    description: str  # for messages, such as "the folder /data/amazon"
    files: Sequence[tuple[str, Path]]  # keys and paths
    labels: Sequence[str]  # class name per file
    class_numbers: Mapping[str, int] = field(default_factory=dict)  # class indices, if a list gives them


FileListReader = Callable[[Path, DomainInfo, Split], FileList | None]  # None: not found


@dataclass(frozen=True)
class Benchmark:
    """Data set of several domains that share their classes."""

    title: str
    domains: tuple[DomainInfo, ...]
    n_classes: int
    download_info: str  # where to get it
    layout: str  # expected folder contents, in a few lines
    counts: Mapping[tuple[str, Split], ImageCount]  # by short name and split
    list_files: FileListReader | None = None  # None: images are not separate files
    has_test_lists: bool = False  # whether each domain has a train and a test split
    task_subset: tuple[str, ...] = ()  # the tasks, if not every pair of domains is one

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, as ``source-target``."""
        return self.task_subset or tuple(
            f"{a.short_name}-{b.short_name}" for a, b in permutations(self.domains, 2)
        )

    def canonical_task(self, spelling: Any) -> str | None:
        """Return the canonical name of a task in any spelling; None if there is no such task."""
        return self._spellings().get(normalise_name(spelling)) if isinstance(spelling, str) else None

    def source_and_target(self, task: Any) -> tuple[DomainInfo, DomainInfo]:
        """Return source and target of a task."""
        canonical = self.canonical_task(task)
        if canonical is None:
            raise UserError(f"{self.title} has no task {task!r}; its tasks are {', '.join(self.tasks)}")
        source, target = (self._domain(short_name) for short_name in canonical.split("-"))
        return source, target

    def role_splits(self, task: Any) -> dict[TaskRole, tuple[DomainInfo, Split]]:
        """Return domain and split for each role of a task.

        If the benchmark has no train and test lists, source and target are whole domains without a test set.
        """
        source, target = self.source_and_target(task)
        if not self.has_test_lists:
            return {"source": (source, "all"), "target": (target, "all")}
        return {"source": (source, "train"), "target": (target, "train"), "test": (target, "test")}

    def expected_counts(self, task: Any) -> dict[TaskRole, tuple[str, ImageCount]]:
        """Return name and published counts for each role of a task, where they are known."""
        return {
            role: (
                domain.name if split == "all" else f"{domain.name} ({split})",
                self.counts[domain.short_name, split],
            )
            for role, (domain, split) in self.role_splits(task).items()
            if (domain.short_name, split) in self.counts
        }

    def _domain(self, short_name: str) -> DomainInfo:
        return next(domain for domain in self.domains if domain.short_name == short_name)

    def _spellings(self) -> dict[str, str]:
        """Map every normalised spelling to its task."""
        spellings = {}
        for task in self.tasks:
            source, target = (self._domain(short_name) for short_name in task.split("-"))
            for one in (source.short_name, source.name, *source.aliases):
                for two in (target.short_name, target.name, *target.aliases):
                    spellings.update(
                        {normalise_name(f"{one}{separator}{two}"): task for separator in ("", "2", "to")}
                    )
        return spellings


def count_classes(names: str, images: str) -> ImageCount:
    """Return the counts of a domain, from the names of the classes and the number of images of each."""
    per_class = dict(zip(names.split(), map(int, images.split()), strict=True))
    return ImageCount(sum(per_class.values()), len(per_class), per_class)


def count_lists(n_classes: int | None, **totals: tuple[int, int]) -> dict[tuple[str, Split], ImageCount]:
    """Return the counts of train and test lists, from the totals of both by the short name of the domain."""
    splits: tuple[Split, Split] = ("train", "test")
    return {
        (name, split): ImageCount(total, n_classes)
        for name, both in totals.items()
        for split, total in zip(splits, both, strict=True)
    }


def normalise_name(name: str) -> str:
    """Normalise a name: remove separators and ignore case.

    >>> normalise_name("Real World") == normalise_name("real_world") == normalise_name("RealWorld")
    True
    """
    return re.sub(r"[\s_>→-]", "", name).lower()
