"""Which folders hold runs, also those that only just began."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ducats.errors import UserError

DEPTH = 3  # `runs/office-home/art-clipart/duc-0`: deeper folders are somebody's data, not runs
MARKS = ("config.yaml", "metrics.jsonl", "checkpoint.pt", ".lock")  # a run has one of them from the start


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Every run at or below the paths, each once; a path without any stands for a run that is to come."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give run folders, or folders that hold them")
        for folder in list(_below(path, DEPTH)) or [path]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / mark).is_file() for mark in MARKS):
        yield folder
    elif depth:
        try:
            children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
        except OSError:  # not ours to read, or gone meanwhile
            return
        for child in children:
            if child.is_dir():
                yield from _below(child, depth - 1)


def held(folder: Path) -> bool | None:
    """Whether a process of this machine works on a run; None where the system does not tell.

    The lock itself is not tried: a run that begins at that moment would find it taken.
    """
    try:
        file = (folder / ".lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    return any(place in line.split() for line in locks)
