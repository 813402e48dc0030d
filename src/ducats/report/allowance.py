"""Size limit of a page: figures come first, then as many images of selected samples as fit."""

import base64
from collections.abc import Sequence
from pathlib import Path

LIMIT = 8_000_000  # bytes of figures and images; with text, a page stays below 10 MB
GALLERY = (24, 16, 12, 8, 4, 2, 0)  # images shown per round: the largest number that fits
KINDS = {".png": "image/png", ".jpg": "image/jpeg"}


def weight(value: object) -> int:
    """Return the UTF-8 size in bytes of all strings in nested dicts, lists and tuples."""
    if isinstance(value, str):
        return len(value.encode("utf-8"))
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, list | tuple) else 0


def shown_of_each(galleries: Sequence[Sequence[Path | None]], left: int) -> int:
    """Return the largest entry of ``GALLERY`` for which that many images of every gallery fit.

    Args:
        galleries: image paths of each gallery, in display order.
        left: remaining size limit in bytes.
    """
    for many in GALLERY:
        if inlined_size([path for gallery in galleries for path in gallery[:many]]) <= left:
            return many
    return 0


def inlined(path: Path | None) -> str:
    """Return an image file as a data URL; empty for None or a file that cannot be read."""
    if path is None:
        return ""
    try:
        held = path.read_bytes()
    except OSError:
        return ""
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(held).decode('ascii')}"


def inlined_size(paths: Sequence[Path | None]) -> int:
    """Return the approximate size in bytes of image files as data URLs."""
    return sum(_size(path) for path in paths if path is not None)


def _size(path: Path) -> int:
    try:
        return -(-path.stat().st_size * 4 // 3) + 40
    except OSError:
        return 0
