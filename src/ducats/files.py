"""Files that a kill leaves whole, old or new, never half of one; folders that one command has to itself."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # no such thing on Windows: there, two commands in one folder are not noticed
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write ``path`` through a temporary neighbour, flushed to disk before it takes the name."""
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
    # Without this the rename itself may be lost in a power cut.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Have a folder to oneself for a while; False if another command has it. A kill lets it go, too."""
    with (folder / ".lock").open("a+") as file:
        alone = True
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                alone = False
        yield alone
