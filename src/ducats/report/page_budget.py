"""Size limit of a page: figures come first, then as many images of selected samples as fit."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_PAGE_BYTES = 8_000_000  # bytes of figures and images; with text, a page stays below 10 MB
GALLERY_SIZES = (24, 16, 12, 8, 4, 2, 0)  # images shown per round: the largest number that fits
IMAGE_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}


def text_bytes(texts: Iterable[str]) -> int:
    """Return the size in bytes of some texts."""
    return sum(len(text.encode()) for text in texts)


def fitting_gallery_size(galleries: Sequence[Sequence[Path | None]], remaining_bytes: int) -> int:
    """Return the largest entry of ``GALLERY_SIZES`` for which that many images of every gallery fit."""
    for n_images in GALLERY_SIZES:
        if data_url_bytes([path for gallery in galleries for path in gallery[:n_images]]) <= remaining_bytes:
            return n_images
    return 0


def image_data_url(path: Path | None) -> str:
    """Return an image file as a data URL; empty for None or a file that cannot be read."""
    if path is None:
        return ""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return f"data:{IMAGE_MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def data_url_bytes(paths: Sequence[Path | None]) -> int:
    """Return the approximate size in bytes of image files as data URLs."""
    return sum(_data_url_bytes(path) for path in paths if path is not None)


def _data_url_bytes(path: Path) -> int:
    try:
        return -(-path.stat().st_size * 4 // 3) + 40
    except OSError:
        return 0
