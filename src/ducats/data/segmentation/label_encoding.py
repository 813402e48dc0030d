"""Label encoding: map the ids in label files to class indices by name. Unknown ids raise."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ducats.data.domain import VOID
from ducats.utils.errors import InvalidFileError, UserError

_Array = NDArray[Any]
LabelFormat = Literal["ids", "red_channel", "colours"]
LABEL_FORMATS: tuple[str, ...] = get_args(LabelFormat)

_MAX_IDS_NAMED = 5  # maximum number of unknown ids in a message


class UnknownIdError(InvalidFileError):
    """A label file contains unknown ids; ``pixel_counts`` are by id as text (``id 7``, ``colour 1 2 3``)."""

    def __init__(self, pixel_counts: Mapping[str, int]) -> None:
        self.pixel_counts = dict(pixel_counts)
        phrases = [
            f"{id_text} in {count} pixel{'s' if count > 1 else ''}" for id_text, count in pixel_counts.items()
        ]
        more = f" and {len(phrases) - _MAX_IDS_NAMED} more" if len(phrases) > _MAX_IDS_NAMED else ""
        super().__init__(f"unknown values: {', '.join(phrases[:_MAX_IDS_NAMED])}{more}")


@dataclass(frozen=True)
class LabelEncoding:
    """Mapping from raw ids to class indices and void, by name."""

    classes: tuple[str, ...]
    id_names: Mapping[int, str]  # the name of every known id; the id of a colour is 65536 r + 256 g + b
    members: Mapping[str, tuple[str, ...]]  # names that belong to each class
    void_names: frozenset[str]  # names of pixels without a class
    label_format: LabelFormat = "ids"  # ids in a single channel, ids in the red channel, or colours
    ids_param: str = "extra_ids"  # the data parameter in which users can name more ids

    def __post_init__(self) -> None:
        if set(self.members) != set(self.classes) or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"members of {sorted(self.members)} do not match the classes {self.classes}")
        listed_names = [name for names in self.members.values() for name in names] + sorted(self.void_names)
        duplicates = sorted({name for name in listed_names if listed_names.count(name) > 1})
        if duplicates:
            raise UserError(f"{duplicates[0]!r} is in two classes, or in a class and void; list it once")
        unassigned = sorted(set(self.id_names.values()) - set(listed_names))
        if unassigned:
            raise UserError(f"{unassigned[0]!r} is neither in a class nor void; add it to one of them")

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of encoded label maps."""
        return np.dtype(np.int8 if len(self.classes) <= 127 else np.int16)

    @property
    def advice(self) -> str:
        """Advice for label files that cannot be read."""
        return (
            "replace corrupt files, and add unknown"
            f" {'colours' if self.label_format == 'colours' else 'ids'} to data.params.{self.ids_param},"
            " with the name of their class or void"
        )

    @cached_property
    def index_by_id(self) -> tuple[tuple[int, int], ...]:
        """Sorted raw ids, each with its class index or VOID."""
        index_by_name = {name: i for i, label in enumerate(self.classes) for name in self.members[label]}
        return tuple(
            (label_id, index_by_name.get(name, VOID)) for label_id, name in sorted(self.id_names.items())
        )

    def with_ids(self, extra_ids: Mapping[Any, str] | None) -> "LabelEncoding":
        """Return a copy with more ids, each with the name of a class, of a member of a class, or void.

        Raises:
            UserError: The name is unknown, or the id already has another name.
        """
        new_ids = {}
        for raw_id, name in (extra_ids or {}).items():
            label_id = parse_label_id(raw_id, self.label_format)
            known_names = {*self.id_names.values(), *self.classes, *self.void_names, "void"}
            if name not in known_names:
                raise UserError(
                    f"data.params.extra_ids maps {raw_id} to {name!r}; use void or one of"
                    f" {', '.join(sorted(known_names - {'void'}))}"
                )
            if self.id_names.get(label_id, name) != name:
                raise UserError(
                    f"data.params.extra_ids maps {raw_id} to {name!r}, which means"
                    f" {self.id_names[label_id]!r}; remove it"
                )
            new_ids[label_id] = name
        members = {
            label: names if label in names or label not in new_ids.values() else (*names, label)
            for label, names in self.members.items()
        }
        void_names = self.void_names | ({"void"} & set(new_ids.values()))
        return replace(self, id_names={**self.id_names, **new_ids}, members=members, void_names=void_names)

    def encode(self, raw_ids: _Array) -> _Array:
        """Convert raw ids of any shape to class indices and VOID.

        Raises:
            UnknownIdError: Some ids have no name.
        """
        if raw_ids.dtype in (np.dtype(np.uint8), np.dtype(np.uint16)) and self.label_format != "colours":
            encoded = self._index_table.take(raw_ids)
        else:
            known_ids, indices = self._sorted_ids
            position = np.searchsorted(known_ids, raw_ids).clip(max=len(known_ids) - 1)
            encoded = np.where(known_ids[position] == raw_ids, indices[position], self._unknown_index)
        unknown = encoded == self._unknown_index
        if unknown.any():
            unknown_ids, counts = np.unique(raw_ids[unknown], return_counts=True)
            id_texts = map(self._format_id, unknown_ids.tolist())
            raise UnknownIdError(dict(zip(id_texts, counts.tolist(), strict=True)))
        return encoded

    def _format_id(self, label_id: int) -> str:
        if self.label_format != "colours":
            return f"id {label_id}"
        return f"colour {label_id >> 16} {label_id >> 8 & 255} {label_id & 255}"

    @property
    def _unknown_index(self) -> int:
        """Marker of unknown ids in tables."""
        return int(np.iinfo(self.dtype).min)

    @cached_property
    def _index_table(self) -> _Array:
        """The class index of every 16-bit id."""
        table = np.full(2**16, self._unknown_index, self.dtype)
        for label_id, index in self.index_by_id:
            if 0 <= label_id < len(table):
                table[label_id] = index
        return table

    @cached_property
    def _sorted_ids(self) -> tuple[_Array, _Array]:
        ids, indices = zip(*self.index_by_id, strict=True)
        return np.array(ids, np.int64), np.array(indices, self.dtype)


def parse_label_id(text: Any, label_format: str = "ids") -> int:
    """Parse an id: one integer, or the three numbers of a colour.

    >>> parse_label_id("7"), parse_label_id("0 1 2", "colours")
    (7, 258)
    """
    words = text if isinstance(text, list | tuple) else str(text).replace(",", " ").split()
    try:
        numbers = [int(word) for word in words]
    except (TypeError, ValueError):
        numbers = []
    if label_format == "colours":
        if len(numbers) != 3 or not all(0 <= number <= 255 for number in numbers):
            raise UserError(f"{text!r} is not a colour; write three numbers from 0 to 255: 128 64 128")
        return numbers[0] << 16 | numbers[1] << 8 | numbers[2]
    if len(numbers) != 1:
        raise UserError(f"{text!r} is not an id; write one integer")
    return numbers[0]
