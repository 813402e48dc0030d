"""User-defined class lists: class names by id or colour, and which classes to merge and keep."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.data.maps.codes import CODINGS, Codes, Coding, parse_code
from ducats.errors import UserError

VOID_NAMES = frozenset({"ignore", "ignored", "void", "unlabelled", "unlabeled"})  # case-insensitive
_MARK = "(void)"  # suffix that marks any other name as void
_ID = re.compile(r"(-?\d+)[\s,;:]+(\S.*)")
_COLOUR = re.compile(r"(\d+[\s,;]+\d+[\s,;]+\d+)[\s,;:]+([^\s\d].*)")


def own_codes(
    classes: str | Path | Mapping[Any, str] | Sequence[str],
    *,
    merge: Mapping[str, Sequence[str]] | None = None,
    keep: Sequence[str] | None = None,
    coded: Coding = "ids",
) -> Codes:
    """Build a label encoding from a class list.

    Args:
        classes: A file with lines ``id name`` or ``r g b name`` (``#`` starts a comment), a mapping from ids
            to names, or a list of names whose ids are their positions. Names such as void and ignore, and
            names that end with ``(void)``, stand for pixels without a class.
        merge: For a class, the names to merge into it, in addition to its own.
        keep: The classes to keep, in order; all others become void. None keeps all.
        coded: ``ids`` in a single channel or in the ``red`` channel. Ignored for lists of colours.

    Raises:
        UserError: The list is malformed, or ``merge`` or ``keep`` contain unknown names.
    """
    if coded not in CODINGS:
        raise UserError(f"data.params.coded must be {' or '.join(CODINGS)}, not {coded!r}")
    where, listed, colours = _listed(classes)
    coded = "colours" if colours else coded
    if coded == "colours" and not colours:
        raise UserError(f"{where} lists ids, but data.params.coded=colours needs lines `r g b name`")
    ids: dict[int, str] = {}
    void = set()
    for given, named in listed:
        name = str(named).strip()
        code = parse_code(given, coded)
        if name.endswith(_MARK) or name.casefold() in VOID_NAMES:
            name = name.removesuffix(_MARK).strip()
            void.add(name)
        if not name or ids.setdefault(code, name) != name:
            raise UserError(f"{where} gives {given} the names {ids.get(code, '')!r} and {name!r}; keep one")
    names = tuple(dict.fromkeys(name for name in ids.values() if name not in void))
    members = _merged(where, names, merge or {})
    kept = _kept(members, keep)
    if len(kept) < 2:
        raise UserError(f"{where} leaves fewer than two classes ({len(kept)}); list or keep more")
    dropped = {name for label in members if label not in kept for name in members[label]}
    return Codes(
        kept, ids, {label: members[label] for label in kept}, frozenset(void | dropped), coded, "classes"
    )


def _listed(classes: Any) -> tuple[str, list[tuple[Any, str]], bool]:
    """Return the name of the list for messages, its entries, and whether they are colours."""
    where = "data.params.classes"
    if isinstance(classes, Mapping):
        colours = bool(classes) and all(len(str(code).split()) == 3 for code in classes)
        return where, list(classes.items()), colours
    if isinstance(classes, list | tuple):
        return where, list(enumerate(classes)), False
    path = Path(classes).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "not a text file"
        raise UserError(
            f"the class list {path} cannot be read ({said}); give a text file with lines `id name`"
        ) from None
    lines = [(place, line.split("#")[0].strip()) for place, line in enumerate(text.splitlines(), start=1)]
    lines = [(place, line) for place, line in lines if line]
    colours = bool(lines) and all(_COLOUR.fullmatch(line) for _, line in lines)
    entries = []
    for place, line in lines:
        found = (_COLOUR if colours else _ID).fullmatch(line)
        if found is None:
            raise UserError(f"{path}, line {place}: {line!r} is not `id name`; fix the line")
        entries.append((found[1].replace(";", " "), found[2]))
    return str(path), entries, colours


def _merged(
    where: str, names: tuple[str, ...], merge: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the names in each class, in the order of the list."""
    home: dict[str, str] = {}
    for label, parts in merge.items():
        if isinstance(parts, str):
            raise UserError(f"data.params.merge: the names for {label!r} must be a list, such as [{parts}]")
        for name in dict.fromkeys((*parts, *((label,) if label in names else ()))):
            if name not in names:
                raise UserError(
                    f"data.params.merge contains {name!r}, which is not in {where}; use {', '.join(names)}"
                )
            if home.setdefault(name, label) != label:
                raise UserError(
                    f"data.params.merge has {name!r} in {home[name]!r} and in {label!r}; keep one"
                )
    members: dict[str, tuple[str, ...]] = {}
    for name in names:
        label = home.get(name, name)
        members[label] = (*members.get(label, ()), name)
    return members


def _kept(members: Mapping[str, Any], keep: Sequence[str] | None) -> tuple[str, ...]:
    """Return the classes to keep."""
    if keep is None:
        return tuple(members)
    strange = [label for label in keep if label not in members]
    if isinstance(keep, str) or strange or len(set(keep)) != len(keep):
        raise UserError(
            f"data.params.keep must be a list of distinct classes from {', '.join(members)}, not {keep!r}"
        )
    return tuple(keep)
