"""Atomic writes and folder locks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: two commands in one folder are not detected
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to a temporary file in the same folder, flush it to disk, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    # Without this, a power cut may lose the rename.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


@contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder; yield False if another process holds the lock. A kill releases it."""
    with (folder / ".lock").open("a+") as file:
        acquired = True
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                acquired = False
        yield acquired
