"""Classes of a run that were added, renamed or merged after it had started, with their history.

A class keeps its number for the life of a run: an added class gets the next one, a renamed class keeps its
own, and the number of a merged class is not used again. Ledger and weights refer to classes by number.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ducats.runfolder import checksums
from ducats.utils.errors import UserError
from ducats.utils.typed_json import parse_json

CLASSES_FILE = "classes.json"


@dataclass(frozen=True)
class ClassChange:
    """One change of the classes of a run."""

    kind: Literal["added", "renamed", "merged"]
    name: str  # of the class, before the change
    into: str = ""  # the new name, or the class that it was merged into
    round: int = 0  # added: round of its first label; otherwise number of rounds with labels at that time
    made_at: str = ""  # UTC, ISO 8601


@dataclass(frozen=True)
class ClassList:
    """The classes of a run: those of its data, and all changes since."""

    initial: tuple[str, ...]
    changes: tuple[ClassChange, ...] = ()

    def __len__(self) -> int:
        """Return the number of class numbers in use, those of merged classes included."""
        return len(self.initial) + sum(change.kind == "added" for change in self.changes)

    @cached_property
    def _state(self) -> tuple[list[str], dict[int, int]]:
        """Return the name of each number, and the number that each merged one became part of."""
        names, merged = list(self.initial), dict[int, int]()
        for change in self.changes:
            if change.kind == "added":
                names.append(change.name)
            elif change.name not in names or (change.kind == "merged" and change.into not in names):
                continue  # it had no label then, or live labelling started again with the changed classes
            elif change.kind == "renamed":
                number = names.index(change.name)
                if change.into in names:  # of a class that was merged into this one: they swap names
                    names[names.index(change.into)] = change.name
                names[number] = change.into
            else:
                merged[names.index(change.name)] = names.index(change.into)
        return names, merged

    @property
    def names(self) -> tuple[str, ...]:
        """Name by number; a merged class has its own last name."""
        return tuple(self._state[0])

    @cached_property
    def merged_into(self) -> tuple[int, ...]:
        """Number of the class that each number now stands for; its own unless it was merged."""
        merged, found = self._state[1], []
        for number in range(len(self)):
            while number in merged:
                number = merged[number]
            found.append(number)
        return tuple(found)

    @property
    def resolved_names(self) -> tuple[str, ...]:
        """Name by number; a merged class has the name of the class that it is part of."""
        return tuple(self.names[number] for number in self.merged_into)

    @property
    def current(self) -> tuple[str, ...]:
        """Names of the classes that are in use, by number."""
        return tuple(self.names[number] for number in self.current_numbers)

    @property
    def current_numbers(self) -> tuple[int, ...]:
        """Numbers of the classes that are in use."""
        return tuple(n for n, into in enumerate(self.merged_into) if n == into)

    @property
    def groups(self) -> tuple[int, ...] | None:
        """Index in ``current`` by number; None if no classes were merged, so that both are the same."""
        current = self.current_numbers
        return tuple(map(current.index, self.merged_into)) if len(current) < len(self) else None

    @property
    def added(self) -> tuple[tuple[str, int], ...]:
        """Name and round of each class in use that was added."""
        rounds = [change.round for change in self.changes if change.kind == "added"]
        numbers = range(len(self.initial), len(self))
        return tuple(
            (self.names[n], r) for n, r in zip(numbers, rounds, strict=True) if self.merged_into[n] == n
        )

    def merge_counts(self, counts: Mapping[int, int]) -> Counter[int]:
        """Return counts by number with those of merged classes added to the class that they are part of."""
        merged = Counter[int]()
        for number, count in counts.items():
            if 0 <= number < len(self):  # not void
                merged[self.merged_into[number]] += count
        return merged

    def predicted_images(self, record: Mapping[str, Any]) -> Counter[int]:
        """Return how many images or pixels seem to belong to each added class, from a record of a run."""
        return self.merge_counts({int(number): count for number, count in record["predicted"].items()})

    def number(self, word: str) -> int | None:
        """Return the number of a class by its name or a former one; None if there is no such class."""
        name = translate_word(word, self.changes)
        return self.names.index(name) if name in self.names else None

    def with_added(self, names: Iterable[str], round_number: int = 0) -> "ClassList":
        """Return the list with new classes."""
        changes = [ClassChange("added", name, round=round_number, made_at=_now()) for name in names]
        return replace(self, changes=(*self.changes, *changes))

    def with_renamed(
        self, old: str, new: str, round_number: int = 0, *, offered: Collection[str] = ()
    ) -> "ClassList":
        """Return the list with another name of a class.

        Args:
            offered: classes that have no label yet, which can be renamed, too.

        Raises:
            UserError: the class does not exist, or the new name is or was the name of another class.
        """
        self._require(old, offered)
        if new == old:
            raise UserError(f"{old!r} has that name already")
        is_known = new in (*self.names, *offered, *(change.name for change in self.changes))
        if is_known and translate_word(new, self.changes) != old:
            raise UserError(
                f"{new!r} is or was the name of another class; choose a new name, or make {old!r} part of "
                "another class with --merge"
            )
        change = ClassChange("renamed", old, new, round_number, _now())
        return replace(self, changes=(*self.changes, change))

    def with_merged(
        self, name: str, into: str, round_number: int = 0, *, offered: Collection[str] = ()
    ) -> "ClassList":
        """Return the list with a class as part of another.

        Args:
            offered: classes that have no label yet, which can be merged into one that has.

        Raises:
            UserError: a class does not exist, both are the same, or they are the last two.
        """
        self._require(name, offered)
        if into in offered and into not in self.current:
            raise UserError(f"{into!r} has no label yet, so no class can be merged into it")
        self._require(into)
        if name == into:
            raise UserError(f"{name!r} cannot be merged into itself")
        if name in self.current and len(self.current) == 2:
            raise UserError("a run needs at least two classes, so its last two cannot be merged")
        change = ClassChange("merged", name, into, round_number, _now())
        return replace(self, changes=(*self.changes, change))

    def _require(self, name: str, offered: Collection[str] = ()) -> None:
        known = tuple(dict.fromkeys((*self.current, *offered)))
        if name not in known:
            raise UserError(f"{name!r} is not a class of this run; its classes are {', '.join(known)}")


def translate_word(word: str, changes: Iterable[ClassChange]) -> str:
    """Return the current name of a class by a former one; other words as they are.

    >>> translate_word("lorry", [ClassChange("renamed", "lorry", "truck")])
    'truck'
    """
    for change in changes:
        if change.kind != "added" and change.name == word:
            word = change.into
    return word


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def load_class_changes(path: Path) -> tuple[ClassChange, ...]:
    """Read the changes; none if there is no file."""
    checksums.verify(path)
    if not path.exists():
        return ()
    try:
        return parse_json(tuple[ClassChange, ...], path.read_bytes())
    except (OSError, ValueError) as error:
        raise checksums.corrupt(path, error) from error


def save_class_changes(path: Path, changes: Sequence[ClassChange]) -> None:
    """Write all changes."""
    text = json.dumps([asdict(change) for change in changes], ensure_ascii=False, indent=1)
    checksums.write_text(path, text + "\n")
