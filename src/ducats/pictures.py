"""Image files as their viewer shows them: upright, opaque, in 8 bits."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}  # in any case
)
File = Path | BytesIO  # an image file, or what is in one
_ORIENTATION, _SIDEWAYS = 0x0112, (5, 6, 7, 8)  # in EXIF


def is_image(name: str) -> bool:
    """Whether a file by this name is to be read.

    >>> [is_image(name) for name in ("a.JPG", ".a.jpg", "a.txt", "jpg")]
    [True, False, False, False]
    """
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def as_shown(file: File) -> Image.Image:
    """One image in full, upright and opaque, in a mode with 8 bits."""
    image = opened_upright(file)
    if image.mode.startswith("I"):
        # Pillow's own conversion cuts at 255 and makes a white picture of 16 bits.
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save as 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB") if image.mode not in ("L", "RGB") else image


def opened_upright(file: File) -> Image.Image:
    """One image in full, in its own mode, turned as its EXIF says."""
    if (file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes) == 0:
        raise ValueError("empty file")
    with Image.open(file) as opened:
        opened.load()
        try:
            return ImageOps.exif_transpose(opened)
        except Exception:  # a broken note about a sound picture: show it as it is stored
            return opened.copy()


def shown_size(file: File) -> tuple[int, int]:
    """Height and width of one image as it is shown, from its header."""
    with Image.open(file) as opened:
        width, height = opened.size
        # A TIFF is opened with the sides that it is going to have. The PNG's own method would read the whole
        # picture, in case that a note follows it.
        turned = opened.format != "TIFF" and _orientation(opened) in _SIDEWAYS
    return (width, height) if turned else (height, width)


def _orientation(image: Image.Image) -> int:
    """How the image is to be turned."""
    try:
        return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:  # as in opened_upright
        return 1
