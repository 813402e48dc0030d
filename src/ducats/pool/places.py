"""File systems of pools: the local disk, or a URL that fsspec supports."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ducats.errors import UserError


class Entry(NamedTuple):
    """File or folder in a folder."""

    name: str
    folder: bool


@dataclass(frozen=True)
class Place:
    """File operations of one file system; paths are strings with ``/``."""

    entries: Callable[[str], list[Entry]]  # a folder without hidden names, in `_sorted` order
    open: Callable[[str], IO[bytes]]
    read: Callable[[str], bytes]
    matching: Callable[[str], list[str]]  # paths that match a pattern with * and ?, sorted
    is_folder: Callable[[str], bool]
    is_file: Callable[[str], bool]


def place_of(where: str) -> tuple[Place, str]:
    """Return the file system of a path or URL, and the path within it."""
    where = where.removeprefix("file://")  # fsspec would skip symbolic links to folders
    if "://" not in where:
        return HERE, str(Path(where).expanduser())
    try:
        import fsspec
    except ImportError:
        raise UserError(f"reading {where} needs fsspec; run pip install 'ducats[stream]'") from None
    try:
        store, path = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"cannot access {where} ({error}); check the URL and install the package it needs"
        ) from None
    elsewhere = Place(
        entries=partial(_listed, store),
        open=store.open,
        read=store.cat_file,
        matching=lambda pattern: sorted(store.glob(pattern)),
        is_folder=store.isdir,
        is_file=store.isfile,
    )
    return elsewhere, str(path)


def _scanned(folder: str) -> list[Entry]:
    """List a local folder; symbolic links to folders are followed unless they point to a parent folder."""
    above, found = Path(folder).resolve(), []
    with os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink() or Path(entry.path).resolve() not in (above, *above.parents):
                    found.append(Entry(entry.name, True))
            elif entry.is_file() or entry.is_symlink():  # not a pipe: reading one would block
                found.append(Entry(entry.name, False))
    return _sorted(found)


def _matching(pattern: str) -> list[str]:
    path = Path(pattern)
    start = Path(path.anchor)
    return sorted(str(found) for found in start.glob(str(path.relative_to(start))))


def _opened(path: str) -> IO[bytes]:
    return Path(path).open("rb")


HERE = Place(
    entries=_scanned,
    open=_opened,
    read=lambda path: Path(path).read_bytes(),
    matching=_matching,
    is_folder=lambda path: Path(path).is_dir(),
    is_file=lambda path: Path(path).is_file(),
)


def _listed(store: Any, folder: str) -> list[Entry]:
    """List a folder of an fsspec file system."""
    found = []
    for entry in store.ls(folder, detail=True):
        path = entry["name"].rstrip("/")
        name = path.rsplit("/", 1)[-1]
        if (
            name and not name.startswith(".") and path != folder.rstrip("/")
        ):  # some stores list the folder itself
            found.append(Entry(name, entry["type"] == "directory"))
    store.invalidate_cache(folder)  # the cache would otherwise keep every listing in memory
    return _sorted(found)


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    """Sort by name, with ``/`` appended to folder names, so a walk yields keys in sorted order.

    >>> [entry.run_id for entry in _sorted([LedgerEntry("a", True), LedgerEntry("a.png", False), LedgerEntry("a0.png", False)])]
    ['a.png', 'a', 'a0.png']
    """
    return sorted(entries, key=lambda entry: f"{entry.name}/" if entry.folder else entry.name)
