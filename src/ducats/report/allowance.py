"""How large a page may become: figures first, then pictures of picks, fewer where many want room."""

import base64
from collections.abc import Sequence
from pathlib import Path

LIMIT = 8_000_000  # bytes of figures and pictures; with text, a page stays below 10 MB
GALLERY = (24, 16, 12, 8, 4, 2, 0)  # picks of a round that are shown, by how much room there is
KINDS = {".png": "image/png", ".jpg": "image/jpeg"}


def weight(value: object) -> int:
    """Bytes of all text in nested values: what of a page is there already."""
    if isinstance(value, str):
        return len(value.encode("utf-8"))
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    return sum(map(weight, value)) if isinstance(value, list | tuple) else 0


def shown_of_each(galleries: Sequence[Sequence[Path | None]], left: int) -> int:
    """How many pictures of each gallery fit into so many bytes: the most, the same for all.

    Args:
        galleries: pictures of each, in order.
        left: bytes.
    """
    for many in GALLERY:
        if inlined_size([path for gallery in galleries for path in gallery[:many]]) <= left:
            return many
    return 0


def inlined(path: Path | None) -> str:
    """A picture as an address that holds it; empty if there is none or it cannot be read."""
    if path is None:
        return ""
    try:
        held = path.read_bytes()
    except OSError:
        return ""
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(held).decode('ascii')}"


def inlined_size(paths: Sequence[Path | None]) -> int:
    """Bytes that pictures take in a page."""
    return sum(_size(path) for path in paths if path is not None)


def _size(path: Path) -> int:
    try:
        return -(-path.stat().st_size * 4 // 3) + 40
    except OSError:
        return 0
