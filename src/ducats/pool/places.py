"""Where files of a pool are: on this machine, or behind a URL that fsspec knows."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ducats.errors import UserError


class Entry(NamedTuple):
    """Something in a folder."""

    name: str
    folder: bool


@dataclass(frozen=True)
class Place:
    """A file system; paths are text with ``/``."""

    entries: Callable[[str], list[Entry]]  # in a folder, hidden ones left out, in the order of `_sorted`
    open: Callable[[str], IO[bytes]]
    read: Callable[[str], bytes]
    matching: Callable[[str], list[str]]  # paths that a pattern with * and ? stands for, sorted
    is_folder: Callable[[str], bool]
    is_file: Callable[[str], bool]


def place_of(where: str) -> tuple[Place, str]:
    """The file system that a path or URL is in, and the path there."""
    where = where.removeprefix("file://")  # fsspec would pass over links to folders
    if "://" not in where:
        return HERE, str(Path(where).expanduser())
    try:
        import fsspec
    except ImportError:
        raise UserError(f"reading {where} needs fsspec; run pip install 'ducats[stream]'") from None
    try:
        store, path = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise UserError(f"{where} cannot be reached: {error}") from None
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
    """What is in a folder of this machine; links to folders are followed, unless they lead back up."""
    above, found = Path(folder).resolve(), []
    with os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink() or Path(entry.path).resolve() not in (above, *above.parents):
                    found.append(Entry(entry.name, True))
            elif entry.is_file() or entry.is_symlink():  # no pipe, which would be waited for
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
    """What is in a folder of a store."""
    found = []
    for entry in store.ls(folder, detail=True):
        path = entry["name"].rstrip("/")
        name = path.rsplit("/", 1)[-1]
        if name and not name.startswith(".") and path != folder.rstrip("/"):  # some list the folder itself
            found.append(Entry(name, entry["type"] == "directory"))
    store.invalidate_cache(folder)  # or it would hold every name that it ever listed
    return _sorted(found)


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    """By name, that of a folder with its ``/``: so a walk gives whole keys in their order.

    >>> [entry.name for entry in _sorted([Entry("a", True), Entry("a.png", False), Entry("a0.png", False)])]
    ['a.png', 'a', 'a0.png']
    """
    return sorted(entries, key=lambda entry: f"{entry.name}/" if entry.folder else entry.name)
