"""User-defined class lists: class names by id or colour, and which classes to merge and keep."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.data.segmentation.label_encoding import LABEL_FORMATS, LabelEncoding, LabelFormat, parse_label_id
from ducats.utils.errors import UserError

VOID_NAMES = frozenset({"ignore", "ignored", "void", "unlabelled", "unlabeled"})  # case-insensitive
_VOID_SUFFIX = "(void)"  # suffix that marks any other name as void
_ID_LINE = re.compile(r"(-?\d+)[\s,;:]+(\S.*)")
_COLOUR_LINE = re.compile(r"(\d+[\s,;]+\d+[\s,;]+\d+)[\s,;:]+([^\s\d].*)")


def encoding_from_class_list(
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    *,
    merge_classes: Mapping[str, Sequence[str]] | None = None,
    keep_classes: Sequence[str] | None = None,
    label_format: LabelFormat = "ids",
) -> LabelEncoding:
    """Build a label encoding from a class list; the parameters are those of ``segmentation_folders``.

    Args:
        classes: A file with lines ``id name`` or ``r g b name`` (``#`` starts a comment), a mapping from ids
            to names, or a list of names whose ids are their positions.
        label_format: Ignored for lists of colours.
    """
    if label_format not in LABEL_FORMATS:
        raise UserError(
            f"data.params.label_format must be {' or '.join(LABEL_FORMATS)}, not {label_format!r}"
        )
    list_name, entries, is_colour_list = _parse_class_list(classes)
    label_format = "colours" if is_colour_list else label_format
    if label_format == "colours" and not is_colour_list:
        raise UserError(
            f"{list_name} lists ids, but data.params.label_format=colours needs lines `r g b name`"
        )
    id_names: dict[int, str] = {}
    void_names = set()
    for raw_id, raw_name in entries:
        name = str(raw_name).strip()
        label_id = parse_label_id(raw_id, label_format)
        if name.endswith(_VOID_SUFFIX) or name.casefold() in VOID_NAMES:
            name = name.removesuffix(_VOID_SUFFIX).strip()
            void_names.add(name)
        if not name or id_names.setdefault(label_id, name) != name:
            raise UserError(
                f"{list_name} gives {raw_id} the names {id_names.get(label_id, '')!r} and {name!r}; keep one"
            )
    names = tuple(dict.fromkeys(name for name in id_names.values() if name not in void_names))
    members = _merge_members(list_name, names, merge_classes or {})
    kept = _select_classes(members, keep_classes)
    if len(kept) < 2:
        raise UserError(f"{list_name} leaves fewer than two classes ({len(kept)}); list or keep more")
    dropped = {name for label in members if label not in kept for name in members[label]}
    return LabelEncoding(
        kept,
        id_names,
        {label: members[label] for label in kept},
        frozenset(void_names | dropped),
        label_format,
        "classes",
    )


def _parse_class_list(classes: Any) -> tuple[str, list[tuple[Any, str]], bool]:
    """Return the name of the list for messages, its entries, and whether they are colours."""
    list_name = "data.params.classes"
    if isinstance(classes, Mapping):
        is_colour_list = bool(classes) and all(len(str(label_id).split()) == 3 for label_id in classes)
        return list_name, list(classes.items()), is_colour_list
    if isinstance(classes, list | tuple):
        return list_name, list(enumerate(classes)), False
    path = Path(classes).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(
            f"the class list {path} cannot be read ({reason}); give a text file with lines `id name`"
        ) from None
    lines = [
        (line_number, line.split("#")[0].strip())
        for line_number, line in enumerate(text.splitlines(), start=1)
    ]
    lines = [(line_number, line) for line_number, line in lines if line]
    is_colour_list = bool(lines) and all(_COLOUR_LINE.fullmatch(line) for _, line in lines)
    entries = []
    for line_number, line in lines:
        match = (_COLOUR_LINE if is_colour_list else _ID_LINE).fullmatch(line)
        if match is None:
            raise UserError(f"{path}, line {line_number}: {line!r} is not `id name`; fix the line")
        entries.append((match[1].replace(";", " "), match[2]))
    return str(path), entries, is_colour_list


def _merge_members(
    list_name: str, names: tuple[str, ...], merge_classes: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the names in each class, in the order of the list."""
    class_of: dict[str, str] = {}
    for label, merged_names in merge_classes.items():
        if isinstance(merged_names, str):
            raise UserError(
                f"data.params.merge_classes: the names for {label!r} must be a list, such as [{merged_names}]"
            )
        for name in dict.fromkeys((*merged_names, *((label,) if label in names else ()))):
            if name not in names:
                raise UserError(
                    f"data.params.merge_classes contains {name!r}, which is not in {list_name}; use"
                    f" {', '.join(names)}"
                )
            if class_of.setdefault(name, label) != label:
                raise UserError(
                    f"data.params.merge_classes has {name!r} in {class_of[name]!r} and in {label!r}; keep one"
                )
    members: dict[str, tuple[str, ...]] = {}
    for name in names:
        label = class_of.get(name, name)
        members[label] = (*members.get(label, ()), name)
    return members


def _select_classes(members: Mapping[str, Any], keep_classes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the classes to keep."""
    if keep_classes is None:
        return tuple(members)
    unknown = [label for label in keep_classes if label not in members]
    if isinstance(keep_classes, str) or unknown or len(set(keep_classes)) != len(keep_classes):
        raise UserError(
            f"data.params.keep_classes must be a list of distinct classes from {', '.join(members)}, not"
            f" {keep_classes!r}"
        )
    return tuple(keep_classes)
