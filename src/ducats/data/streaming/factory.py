"""Open a pool from a path or URL."""

import re
from typing import Literal, get_args

from ducats.data.streaming import shards
from ducats.data.streaming.filesystem import FileSystem, resolve_filesystem
from ducats.data.streaming.manifest import ManifestPool
from ducats.data.streaming.pool import FolderPool, Pool, escape_non_utf8
from ducats.data.streaming.shards import ShardPool
from ducats.utils.errors import UserError
from ducats.utils.image_files import is_image_name

PoolFormat = Literal["auto", "folder", "parquet", "csv", "shards"]
DEFAULT_MAX_SAMPLE_MB = 256.0


def open_pool(
    pool_uri: str, *, pool_format: PoolFormat = "auto", max_sample_mb: float = DEFAULT_MAX_SAMPLE_MB
) -> Pool:
    """Open a pool, reading only the header of a table or the names in one folder.

    Args:
        pool_uri: a folder, a ``.csv`` or ``.parquet`` table, a ``.tar`` file, a folder of ``.tar`` files, or
            several as ``shards-{000..099}.tar`` or ``shards-*.tar``. A path, or a URL that fsspec supports.
        pool_format: ``auto`` detects it from the name or, for a folder, from its files.
        max_sample_mb: largest file of one sample, in megabytes; larger ones are unreadable samples.
    """
    if not max_sample_mb > 0:
        raise UserError(f"--max-sample-mb must be a positive number, not {max_sample_mb}")
    if pool_format not in get_args(PoolFormat):
        raise UserError(
            f"--pool-format {pool_format} is not a pool format; choose from: "
            f"{', '.join(get_args(PoolFormat))}"
        )
    if escape_non_utf8(pool_uri) != pool_uri:
        raise UserError(f"the pool name {escape_non_utf8(pool_uri)} is not valid UTF-8; rename it")
    filesystem, path = resolve_filesystem(pool_uri)
    try:
        return _open(pool_uri, filesystem, path, pool_format, int(max_sample_mb * 1e6))
    except UserError:
        raise
    except Exception as error:  # remote file systems raise errors of any type
        raise UserError(f"pool {pool_uri} cannot be read ({error or type(error).__name__})") from error


def _open(
    pool_uri: str, filesystem: FileSystem, path: str, pool_format: PoolFormat, max_sample_bytes: int
) -> Pool:
    if pool_format == "auto":
        pool_format = _detect_format(pool_uri, filesystem, path)
    if pool_format == "shards":
        return ShardPool(pool_uri, filesystem, _find_shards(pool_uri, filesystem, path), max_sample_bytes)
    if pool_format == "folder":
        if not filesystem.is_folder(path):
            raise UserError(
                f"folder {pool_uri} does not exist; pass a folder of images or another --pool-format"
            )
        return FolderPool(pool_uri, filesystem, path, max_sample_bytes)
    if not filesystem.is_file(path):
        raise UserError(f"table {pool_uri} does not exist; check the path")
    return ManifestPool(pool_uri, filesystem, path, pool_format, max_sample_bytes)  # type: ignore[arg-type]


def _detect_format(pool_uri: str, filesystem: FileSystem, path: str) -> PoolFormat:
    lower_path = path.lower()
    if lower_path.endswith(".csv"):
        return "csv"
    if lower_path.endswith(".parquet"):
        return "parquet"
    if lower_path.endswith(shards.TAR_SUFFIXES):
        return "shards"
    if not filesystem.is_folder(path):
        raise UserError(
            f"pool {pool_uri} does not exist; pass a folder of images, a .csv or .parquet table, or "
            ".tar shards"
        )
    names = [entry.name for entry in filesystem.list_folder(path) if not entry.is_folder]
    has_tars, has_images = any(map(_is_tar, names)), any(map(is_image_name, names))
    if has_tars and has_images:
        raise UserError(
            f"{pool_uri} contains images and tar files; choose with --pool-format folder or "
            "--pool-format shards"
        )
    return "shards" if has_tars else "folder"


def _find_shards(pool_uri: str, filesystem: FileSystem, path: str) -> list[tuple[str, str]]:
    """Return pairs of the shard's name, as used in keys, and its path."""
    if filesystem.is_folder(path):
        names = [
            entry.name
            for entry in filesystem.list_folder(path)
            if not entry.is_folder and _is_tar(entry.name)
        ]
        found = [(name, f"{path.rstrip('/')}/{name}") for name in names]
    else:
        paths = [
            shard_path
            for pattern in expand_ranges(path)
            for shard_path in _glob(pool_uri, filesystem, pattern)
        ]
        file_names = [shard_path.rsplit("/", 1)[-1] for shard_path in paths]
        found = list(
            zip(file_names if len(set(file_names)) == len(file_names) else paths, paths, strict=True)
        )
    if not found:
        raise UserError(f"no tar files found at {pool_uri}; check the path")
    return found


def _glob(pool_uri: str, filesystem: FileSystem, pattern: str) -> list[str]:
    if "*" in pattern or "?" in pattern:
        return filesystem.glob(pattern)
    if not filesystem.is_file(pattern):
        raise UserError(f"shard {pattern} of {pool_uri} does not exist; check the path")
    return [pattern]


def expand_ranges(pattern: str) -> list[str]:
    """Expand numeric ranges in braces.

    >>> expand_ranges("s-{08..10}.tar")
    ['s-08.tar', 's-09.tar', 's-10.tar']
    """
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [expanded_path for number in numbers for expanded_path in expand_ranges(before + number + after)]


def _is_tar(name: str) -> bool:
    return name.lower().endswith(shards.TAR_SUFFIXES) and not name.startswith(".")
