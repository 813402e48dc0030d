"""Label encoding: map the ids in label files to class indices by name. Unknown ids raise."""

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

_NAMED = 5  # maximum number of unknown ids in a message


class UnknownIdError(ValueError):
    """A label file contains unknown ids.

    Args:
        pixels: The number of pixels by id, with ids as text (``id 7``, ``colour 1 2 3``).
    """

    def __init__(self, pixels: Mapping[str, int]) -> None:
        self.pixels = dict(pixels)
        named = [f"{shown} in {count} pixel{'s' if count > 1 else ''}" for shown, count in pixels.items()]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        super().__init__(f"unknown values: {', '.join(named[:_NAMED])}{more}")


@dataclass(frozen=True)
class Codes:
    """Mapping from raw ids to class indices and void, by name."""

    classes: tuple[str, ...]
    ids: Mapping[int, str]  # the name of every known id; the id of a colour is 65536 r + 256 g + b
    members: Mapping[str, tuple[str, ...]]  # names that belong to each class
    void: frozenset[str]  # names of pixels without a class
    coded: Coding = "ids"  # ids in a single channel, ids in the red channel, or colours
    knob: str = "ids"  # the data parameter in which users can name more ids

    def __post_init__(self) -> None:
        if set(self.members) != set(self.classes) or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"members of {sorted(self.members)} do not match the classes {self.classes}")
        parts = [name for names in self.members.values() for name in names] + sorted(self.void)
        doubled = sorted({name for name in parts if parts.count(name) > 1})
        if doubled:
            raise UserError(f"{doubled[0]!r} is in two classes, or in a class and void; list it once")
        homeless = sorted(set(self.ids.values()) - set(parts))
        if homeless:
            raise UserError(f"{homeless[0]!r} is neither in a class nor void; add it to one of them")

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of encoded label maps."""
        return np.dtype(np.int8 if len(self.classes) <= 127 else np.int16)

    @property
    def remedy(self) -> str:
        """Advice for label files that cannot be read."""
        return (
            f"replace corrupt files, and add unknown {'colours' if self.coded == 'colours' else 'ids'} to"
            f" data.params.{self.knob}, with the name of their class or void"
        )

    @cached_property
    def meanings(self) -> tuple[tuple[int, int], ...]:
        """Sorted raw ids, each with its class index or VOID."""
        index = {name: i for i, label in enumerate(self.classes) for name in self.members[label]}
        return tuple((code, index.get(name, VOID)) for code, name in sorted(self.ids.items()))

    def also(self, ids: Mapping[Any, str] | None) -> "Codes":
        """Return a copy with more ids, each with the name of a class, of a member of a class, or void.

        Raises:
            UserError: The name is unknown, or the id already has another name.
        """
        more = {}
        for given, name in (ids or {}).items():
            code = parse_code(given, self.coded)
            known = {*self.ids.values(), *self.classes, *self.void, "void"}
            if name not in known:
                raise UserError(
                    f"data.params.ids maps {given} to {name!r}; use void or one of"
                    f" {', '.join(sorted(known - {'void'}))}"
                )
            if self.ids.get(code, name) != name:
                raise UserError(
                    f"data.params.ids maps {given} to {name!r}, which means {self.ids[code]!r}; remove it"
                )
            more[code] = name
        members = {
            label: names if label in names or label not in more.values() else (*names, label)
            for label, names in self.members.items()
        }
        void = self.void | ({"void"} & set(more.values()))
        return replace(self, ids={**self.ids, **more}, members=members, void=void)

    def encode(self, raw: Array) -> Array:
        """Convert raw ids of any shape to class indices and VOID.

        Raises:
            UnknownIdError: Some ids have no name.
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
        """Marker of unknown ids in tables."""
        return int(np.iinfo(self.dtype).min)

    @cached_property
    def _table(self) -> Array:
        """The class index of every 16-bit id."""
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
    """Parse an id: one integer, or the three numbers of a colour.

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
            raise UserError(f"{given!r} is not a colour; write three numbers from 0 to 255: 128 64 128")
        return numbers[0] << 16 | numbers[1] << 8 | numbers[2]
    if len(numbers) != 1:
        raise UserError(f"{given!r} is not an id; write one integer")
    return numbers[0]
