"""File systems of pools: the local disk, or a URL that fsspec supports."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ducats.utils.errors import UserError
from ducats.utils.image_files import check_regular_file


class FolderEntry(NamedTuple):
    """File or folder in a folder."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class FileSystem:
    """File operations of one file system; paths are strings with ``/``."""

    list_folder: Callable[[str], list[FolderEntry]]  # a folder without hidden names, in `_sort_entries` order
    open: Callable[[str], IO[bytes]]
    read: Callable[[str, int], bytes]  # a file of at most so many bytes; OSError if it is larger
    glob: Callable[[str], list[str]]  # paths that match a pattern with * and ?, sorted
    is_folder: Callable[[str], bool]
    is_file: Callable[[str], bool]


def resolve_filesystem(uri: str) -> tuple[FileSystem, str]:
    """Return the file system of a path or URL, and the path within it."""
    uri = uri.removeprefix("file://")  # fsspec would skip symbolic links to folders
    if "://" not in uri:
        return LOCAL_FILESYSTEM, str(Path(uri).expanduser())
    try:
        import fsspec
    except ImportError:
        raise UserError(f"reading {uri} needs fsspec; run pip install 'ducats[stream]'") from None
    try:
        store, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"cannot access {uri} ({error}); check the URL and install the package it needs"
        ) from None
    remote = FileSystem(
        list_folder=partial(_list_remote, store),
        open=store.open,
        read=partial(_read_remote, store),
        glob=lambda pattern: sorted(store.glob(pattern)),
        is_folder=store.isdir,
        is_file=store.isfile,
    )
    return remote, str(path)


def _list_local(folder: str) -> list[FolderEntry]:
    """List a local folder; symbolic links to folders are followed unless they point to a parent folder."""
    resolved, found = Path(folder).resolve(), []
    with os.scandir(folder) as scan:
        for entry in scan:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if not entry.is_symlink() or Path(entry.path).resolve() not in (resolved, *resolved.parents):
                    found.append(FolderEntry(entry.name, True))
            elif entry.is_file() or entry.is_symlink():  # not a pipe: reading one would block
                found.append(FolderEntry(entry.name, False))
    return _sort_entries(found)


def _glob_local(pattern: str) -> list[str]:
    path = Path(pattern)
    start = Path(path.anchor)
    return sorted(str(found) for found in start.glob(str(path.relative_to(start))))


def _open_local(path: str) -> IO[bytes]:
    return Path(path).open("rb")


def _read_local(path: str, max_bytes: int) -> bytes:
    check_regular_file(Path(path))  # a device may have no end
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(describe_excess(max_bytes, size))
        return file.read()


def _read_remote(store: Any, path: str, max_bytes: int) -> bytes:
    data = bytes(store.cat_file(path, 0, max_bytes + 1))  # asking for the size would be a second request
    if len(data) > max_bytes:
        raise OSError(describe_excess(max_bytes))
    return data


def describe_excess(max_bytes: int, size: int | None = None) -> str:
    """Say that the file of a sample is too large.

    >>> describe_excess(256_000_000, 1_200_000_000)
    'its 1,200 MB are more than the 256 MB of --max-sample-mb'
    """
    subject = "it has" if size is None else f"its {_megabytes(size)} MB are"
    return f"{subject} more than the {_megabytes(max_bytes)} MB of --max-sample-mb"


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f}" if n_bytes >= 1e7 else f"{n_bytes / 1e6:.3g}"


LOCAL_FILESYSTEM = FileSystem(
    list_folder=_list_local,
    open=_open_local,
    read=_read_local,
    glob=_glob_local,
    is_folder=lambda path: Path(path).is_dir(),
    is_file=lambda path: Path(path).is_file(),
)


def _list_remote(store: Any, folder: str) -> list[FolderEntry]:
    """List a folder of an fsspec file system."""
    found = []
    for entry in store.ls(folder, detail=True):
        path = entry["name"].rstrip("/")
        name = path.rsplit("/", 1)[-1]
        # Some stores list the folder itself.
        if name and not name.startswith(".") and path != folder.rstrip("/"):
            found.append(FolderEntry(name, entry["type"] == "directory"))
    store.invalidate_cache(folder)  # the cache would otherwise keep every listing in memory
    return _sort_entries(found)


def _sort_entries(entries: Sequence[FolderEntry]) -> list[FolderEntry]:
    """Sort by name, with ``/`` appended to folder names, so a walk yields keys in sorted order.

    >>> entries = [FolderEntry("a", True), FolderEntry("a.png", False), FolderEntry("a0.png", False)]
    >>> [entry.name for entry in _sort_entries(entries)]
    ['a.png', 'a', 'a0.png']
    """
    return sorted(entries, key=lambda entry: f"{entry.name}/" if entry.is_folder else entry.name)
