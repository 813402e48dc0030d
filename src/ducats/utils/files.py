"""Atomic writes and file locks."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported on first use: it imports asyncio, which commands without a lock do not need
    from filelock import FileLock

LOCK_FILE = ".lock"  # in a folder that one process at a time may use
_LOCK_POLL_SECONDS = 0.02


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
    sync_folder(path.parent)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def write_csv_atomically(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file as UTF-8, atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text_atomically(path, text.getvalue())


def sync_folder(folder: Path) -> None:
    """Flush new names in a folder to disk, where the system can: else a power cut may lose them."""
    with suppress(OSError):  # Windows and some shared folders cannot
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def try_lock(path: Path, timeout_seconds: float = 0.0) -> "FileLock | None":
    """Lock a file; return None if another process still holds the lock after the timeout.

    The lock ends with the process, even if it is killed. The file stays.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)  # any thread may release it
    try:
        lock.acquire(timeout=timeout_seconds)
    except Timeout:
        return None
    return lock


@contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder; yield False if another process holds the lock."""
    lock = try_lock(folder / LOCK_FILE)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def lock_beside(path: Path) -> AbstractContextManager[object]:
    """Lock a file through a hidden file beside it; wait until other processes and threads release it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    return lock.acquire(poll_interval=_LOCK_POLL_SECONDS)
