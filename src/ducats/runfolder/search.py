"""Search for run folders."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

MAX_SEARCH_DEPTH = 3  # `runs/office-home/art-clipart/duc-0`; deeper folders are data, not runs


def find_run_folders(paths: Sequence[Path], *, include_incomplete: bool = False) -> list[Path]:
    """Return every run folder at or below the paths once, ordered by path, then by name.

    Args:
        include_incomplete: also return runs whose config is missing, because they have just started or lost
            it, and each path without any run.

    Raises:
        UserError: a path is not a folder, or contains no run.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder. Give run folders, or folders that contain them")
        found = list(_walk(path, MAX_SEARCH_DEPTH, include_incomplete))
        if not found and not include_incomplete:
            raise UserError(
                f"{path} contains no run (no {RunFolder(path).config_path.name} in it or up to "
                f"{MAX_SEARCH_DEPTH} levels below). Give a folder written by `ducats run` or `ducats sweep`"
            )
        for folder in found or [path]:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise UserError("no paths given. Give run folders, or folders that contain them")
    return list(folders.values())


def _walk(folder: Path, depth: int, include_incomplete: bool) -> Iterator[Path]:
    run_folder = RunFolder(folder)
    own_files = [run_folder.config_path]
    own_files += [run_folder.metrics_path, run_folder.checkpoint_path] if include_incomplete else []
    if any(path.is_file() for path in own_files):
        yield folder
        return
    found = False
    for child in _children(folder) if depth else []:
        for run in _walk(child, depth - 1, include_incomplete):
            found = True
            yield run
    # A sweep locks its own folder too, but has runs below.
    if include_incomplete and not found and run_folder.lock_path.is_file():
        yield folder


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:  # not readable, or deleted since
        return []
