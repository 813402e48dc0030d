"""Open a pool from a path or URL."""

import re
from typing import Literal, get_args

from ducats.errors import UserError
from ducats.image_files import is_image_name
from ducats.pool import shards
from ducats.pool.folder import Folder
from ducats.pool.manifest import Manifest
from ducats.pool.places import Place, place_of
from ducats.pool.sample import Pool, spelt
from ducats.pool.shards import Shards

Kind = Literal["auto", "folder", "parquet", "csv", "shards"]


def open_pool(where: str, *, kind: Kind = "auto") -> Pool:
    """Open a pool, reading only the header of a table or the names in one folder.

    Args:
        where: a folder, a ``.csv`` or ``.parquet`` table, a ``.tar`` file, a folder of ``.tar`` files, or
            several as ``shards-{000..099}.tar`` or ``shards-*.tar``. A path, or a URL that fsspec supports.
        kind: pool format; ``auto`` detects it from the name or, for a folder, from its files.

    Raises:
        UserError: The pool does not exist or cannot be read.
    """
    if kind not in get_args(Kind):
        raise UserError(
            f"--pool-format {kind} is not a pool format; choose from: {', '.join(get_args(Kind))}"
        )
    if spelt(where) != where:
        raise UserError(f"the pool name {spelt(where)} is not valid UTF-8; rename it")
    place, path = place_of(where)
    try:
        return _opened(where, place, path, kind)
    except UserError:
        raise
    except Exception as error:  # remote file systems raise errors of any type
        raise UserError(f"pool {where} cannot be read ({error or type(error).__name__})") from error


def _opened(where: str, place: Place, path: str, kind: Kind) -> Pool:
    if kind == "auto":
        kind = _kind(where, place, path)
    if kind == "shards":
        return Shards(where, place, _shards(where, place, path))
    if kind == "folder":
        if not place.is_folder(path):
            raise UserError(
                f"folder {where} does not exist; pass a folder of images or another --pool-format"
            )
        return Folder(where, place, path)
    if not place.is_file(path):
        raise UserError(f"table {where} does not exist; check the path")
    return Manifest(where, place, path, kind)  # type: ignore[arg-type]


def _kind(where: str, place: Place, path: str) -> Kind:
    lower = path.lower()
    if lower.endswith(".csv"):
        return "csv"
    if lower.endswith(".parquet"):
        return "parquet"
    if lower.endswith(shards.SUFFIXES):
        return "shards"
    if not place.is_folder(path):
        raise UserError(
            f"pool {where} does not exist; pass a folder of images, a .csv or .parquet table, or .tar shards"
        )
    names = [entry.name for entry in place.entries(path) if not entry.folder]
    tars, images = any(map(_is_tar, names)), any(map(is_image_name, names))
    if tars and images:
        raise UserError(
            f"{where} contains images and tar files; choose with --pool-format folder or --pool-format shards"
        )
    return "shards" if tars else "folder"


def _shards(where: str, place: Place, path: str) -> list[tuple[str, str]]:
    """Return pairs of the shard's name, as used in keys, and its path."""
    if place.is_folder(path):
        names = [entry.name for entry in place.entries(path) if not entry.folder and _is_tar(entry.name)]
        found = [(name, f"{path.rstrip('/')}/{name}") for name in names]
    else:
        paths = [one for pattern in expanded(path) for one in _matching(where, place, pattern)]
        short = [one.rsplit("/", 1)[-1] for one in paths]
        found = list(zip(short if len(set(short)) == len(short) else paths, paths, strict=True))
    if not found:
        raise UserError(f"no tar files found at {where}; check the path")
    return found


def _matching(where: str, place: Place, pattern: str) -> list[str]:
    if "*" in pattern or "?" in pattern:
        return place.matching(pattern)
    if not place.is_file(pattern):
        raise UserError(f"shard {pattern} of {where} does not exist; check the path")
    return [pattern]


def expanded(pattern: str) -> list[str]:
    """Expand numeric ranges in braces.

    >>> expanded("s-{08..10}.tar")
    ['s-08.tar', 's-09.tar', 's-10.tar']
    """
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [one for number in numbers for one in expanded(before + number + after)]


def _is_tar(name: str) -> bool:
    return name.lower().endswith(shards.SUFFIXES) and not name.startswith(".")
