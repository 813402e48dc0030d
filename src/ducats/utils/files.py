"""Atomic writes and file locks."""

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported on first use: it imports asyncio, which commands without a lock do not need
    from filelock import FileLock

from ducats.utils.csv_files import write_csv
from ducats.utils.errors import UserError

LOCK_FILE = ".lock"  # in a folder that one process at a time may use
_LOCK_POLL_SECONDS = 0.02


class WriteError(UserError, OSError):
    """A file cannot be written, because the disk is full or the folder is read-only."""


# Reasons why a file cannot be written that are not errors of the program, and what to do.
_WRITE_ERRORS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space or have your quota raised",
    errno.EFBIG: "choose another folder",
    errno.EROFS: "choose another folder",
    errno.EACCES: "choose another folder or change its permissions",
    errno.EPERM: "choose another folder or change its permissions",
    errno.ENOTDIR: "choose another folder",
    errno.EEXIST: "choose another folder",
    errno.EIO: "check the disk",
}


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn a write error that the user can fix into one sentence with the path and the free space.

    Raises:
        WriteError: e.g. the disk is full.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (system_error := _find_write_error(error, path)) is None:
            raise
        reason, remedy = _describe(system_error, path), _WRITE_ERRORS[system_error.errno or 0]
        raise WriteError(f"cannot write {path}: {reason}; {remedy} and try again") from error


def _find_write_error(error: BaseException | None, path: Path) -> OSError | None:
    """Return the system error about a path or its folder; torch raises another error while handling it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS:
            of = path if error.filename is None else Path(os.fsdecode(error.filename))
            if of.parent == path.parent or of in path.parents:  # else about a file that is read meanwhile
                return error
        error = error.__cause__ or error.__context__
    return None


def _describe(error: OSError, path: Path) -> str:
    """Return the reason; of a full disk, with the free space of the nearest folder that exists."""
    reason = os.strerror(error.errno or 0)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return reason
    with suppress(OSError, StopIteration):
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        return f"{reason}, {shutil.disk_usage(folder).free / 1e6:,.1f} MB free"
    return reason


def write_atomically(
    path: Path,
    write: Callable[[IO[bytes]], object],
    replace: Callable[[Path, Path], object] | None = None,
) -> None:
    """Write to a temporary file in the same folder, flush it to disk, then rename it to ``path``.

    Args:
        replace: renames the temporary file, its first argument, to the second.

    Raises:
        WriteError: e.g. the disk is full.
    """
    with explain_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with draft.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            (replace or Path.replace)(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists.

    Raises:
        WriteError: e.g. the folder above is read-only.
    """
    with explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def write_csv_atomically(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file as UTF-8, atomically."""
    write_text_atomically(path, csv_text(header, rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return the text of a CSV file, see ``write_csv``."""
    text = io.StringIO()
    write_csv(text, [header, *rows])
    return text.getvalue()


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
        with explain_errors(path):
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


@contextmanager
def lock_beside(path: Path) -> Iterator[None]:
    """Lock a file through a hidden file beside it; wait until other processes and threads release it."""
    from filelock import FileLock

    make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    with explain_errors(path):
        lock.acquire(poll_interval=_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()
