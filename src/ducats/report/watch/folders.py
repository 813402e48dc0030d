"""Find run folders, including those of runs that have just started."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ducats.utils.errors import UserError

MAX_FOLDER_DEPTH = 3  # `runs/office-home/art-clipart/duc-0`; deeper folders are data, not runs
RUN_FILES = ("config.yaml", "metrics.jsonl", "checkpoint.pt", ".lock")  # a run has one of them from the start


def discover_run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return every run folder at or below the paths, without duplicates. A path without runs is kept."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; give run folders, or folders that contain them")
        for folder in list(_search(path, MAX_FOLDER_DEPTH)) or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).is_file() for name in RUN_FILES):
        yield folder
    elif depth:
        try:
            children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
        except OSError:  # not readable, or deleted since
            return
        for child in children:
            if child.is_dir():
                yield from _search(child, depth - 1)


def is_run_active(folder: Path) -> bool | None:
    """Return whether a process on this machine works on a run; None if the system cannot tell.

    The lock is not acquired: a run that starts at that moment would find it taken.
    """
    try:
        lock_stat = (folder / ".lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    inode = f"{os.major(lock_stat.st_dev):02x}:{os.minor(lock_stat.st_dev):02x}:{lock_stat.st_ino}"
    return any(inode in line.split() for line in locks)
