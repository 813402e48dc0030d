"""What the numbers in a label file mean: ids have names, names are classes or void, and none is guessed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ducats.domain import VOID
from ducats.errors import UserError

Array = NDArray[Any]
Coding = Literal["ids", "red", "colours"]
CODINGS: tuple[str, ...] = get_args(Coding)

_NAMED = 5  # unknown ids that an error names


class UnknownIdError(ValueError):
    """Ids that have no name.

    Args:
        pixels: how many have each, by the id in words (``id 7``, ``colour 1 2 3``).
    """

    def __init__(self, pixels: Mapping[str, int]) -> None:
        self.pixels = dict(pixels)
        named = [f"{shown} in {count} pixel{'s' if count > 1 else ''}" for shown, count in pixels.items()]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        super().__init__(f"nobody knows what is meant by {', '.join(named[:_NAMED])}{more}")


@dataclass(frozen=True)
class Codes:
    """Classes, the raw ids that mean each, and the raw ids that mean none, all by name."""

    classes: tuple[str, ...]
    ids: Mapping[int, str]  # a name for every id that may occur; a colour's id is 65536 r + 256 g + b
    members: Mapping[str, tuple[str, ...]]  # the names that make up each class
    void: frozenset[str]  # names that mean: no class applies
    coded: Coding = "ids"  # one channel of ids; or ids in the red channel; or colours
    knob: str = "ids"  # where a user may name more ids

    def __post_init__(self) -> None:
        if set(self.members) != set(self.classes) or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"members of {sorted(self.members)} for the classes {self.classes}")
        parts = [name for names in self.members.values() for name in names] + sorted(self.void)
        doubled = sorted({name for name in parts if parts.count(name) > 1})
        if doubled:
            raise UserError(f"{doubled[0]!r} is in two classes, or in one and void as well; name it once")
        homeless = sorted(set(self.ids.values()) - set(parts))
        if homeless:
            raise UserError(f"{homeless[0]!r} is neither in a class nor void; say which")

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Of maps of class indices."""
        return np.dtype(np.int8 if len(self.classes) <= 127 else np.int16)

    @property
    def remedy(self) -> str:
        """What to do about label files that cannot be read."""
        return (
            f"replace what is broken, and name unknown {'colours' if self.coded == 'colours' else 'ids'} in"
            f" data.knobs.{self.knob}: as their class, or as void if none applies"
        )

    @cached_property
    def meanings(self) -> tuple[tuple[int, int], ...]:
        """Raw ids, sorted, each with its class index or VOID."""
        index = {name: i for i, label in enumerate(self.classes) for name in self.members[label]}
        return tuple((code, index.get(name, VOID)) for code, name in sorted(self.ids.items()))

    def also(self, ids: Mapping[Any, str] | None) -> "Codes":
        """These codes with more ids, each named as a class, as one of its members, or as void.

        Raises:
            UserError: The name is unknown, or the id has another one already.
        """
        more = {}
        for given, name in (ids or {}).items():
            code = parse_code(given, self.coded)
            known = {*self.ids.values(), *self.classes, *self.void, "void"}
            if name not in known:
                raise UserError(
                    f"data.knobs.ids names {given} {name!r}; it must be void or one of"
                    f" {', '.join(sorted(known - {'void'}))}"
                )
            if self.ids.get(code, name) != name:
                raise UserError(
                    f"data.knobs.ids names {given} {name!r}, but it means {self.ids[code]!r}; leave it out"
                )
            more[code] = name
        members = {
            label: names if label in names or label not in more.values() else (*names, label)
            for label, names in self.members.items()
        }
        void = self.void | ({"void"} & set(more.values()))
        return replace(self, ids={**self.ids, **more}, members=members, void=void)

    def encode(self, raw: Array) -> Array:
        """Class indices, and VOID, of raw ids of any shape.

        Raises:
            UnknownIdError: An id is in no list: which, and in how many pixels.
        """
        if raw.dtype in (np.dtype(np.uint8), np.dtype(np.uint16)) and self.coded != "colours":
            found = self._table.take(raw)
        else:
            codes, indices = self._sorted
            place = np.searchsorted(codes, raw).clip(max=len(codes) - 1)
            found = np.where(codes[place] == raw, indices[place], self._unknown)
        unknown = found == self._unknown
        if unknown.any():
            codes, counts = np.unique(raw[unknown], return_counts=True)
            shown = map(self._shown, codes.tolist())
            raise UnknownIdError(dict(zip(shown, counts.tolist(), strict=True)))
        return found

    def _shown(self, code: int) -> str:
        if self.coded != "colours":
            return f"id {code}"
        return f"colour {code >> 16} {code >> 8 & 255} {code & 255}"

    @property
    def _unknown(self) -> int:
        """In tables: no such id."""
        return int(np.iinfo(self.dtype).min)

    @cached_property
    def _table(self) -> Array:
        """The class index of every id of 16 bits."""
        table = np.full(2**16, self._unknown, self.dtype)
        for code, index in self.meanings:
            if 0 <= code < len(table):
                table[code] = index
        return table

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        codes, indices = zip(*self.meanings, strict=True)
        return np.array(codes, np.int64), np.array(indices, self.dtype)


def parse_code(given: Any, coded: str = "ids") -> int:
    """An id as it may be written: a number, or a colour's three.

    >>> parse_code("7"), parse_code("0 1 2", "colours")
    (7, 258)
    """
    words = given if isinstance(given, list | tuple) else str(given).replace(",", " ").split()
    try:
        numbers = [int(word) for word in words]
    except (TypeError, ValueError):
        numbers = []
    if coded == "colours":
        if len(numbers) != 3 or not all(0 <= number <= 255 for number in numbers):
            raise UserError(f"{given!r} is no colour; write three numbers from 0 to 255, as in 128 64 128")
        return numbers[0] << 16 | numbers[1] << 8 | numbers[2]
    if len(numbers) != 1:
        raise UserError(f"{given!r} is no id; write one whole number")
    return numbers[0]
