"""Reading image files as a viewer shows them: upright, opaque, 8 bits per channel."""

import stat
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

IMAGE_FILE_SUFFIXES = frozenset(  # in lower case
    {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
)
ImageFile = Path | BytesIO  # an image file, or its contents
_EXIF_ORIENTATION, _SIDEWAYS_ORIENTATIONS = 0x0112, (5, 6, 7, 8)  # in EXIF


def is_image_name(name: str) -> bool:
    """Return whether a file name is that of a visible image file.

    >>> [is_image_name(name) for name in ("a.JPG", ".a.jpg", "a.txt", "jpg")]
    [True, False, False, False]
    """
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_FILE_SUFFIXES


def load_image(file: ImageFile) -> Image.Image:
    """Load an image upright and opaque, as 8-bit grey or RGB."""
    image = load_upright(file)
    if image.mode.startswith("I"):
        # Pillow's conversion clips at 255, which turns a 16-bit image white.
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; save as 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB") if image.mode not in ("L", "RGB") else image


def load_upright(file: ImageFile) -> Image.Image:
    """Load an image in its own mode, rotated according to its EXIF orientation."""
    with open_image(file) as opened:
        opened.load()
        try:
            return ImageOps.exif_transpose(opened)
        except Exception:  # broken EXIF, but the image is fine: return it unrotated
            return opened.copy()


def open_image(file: ImageFile) -> Image.Image:
    """Open an image without decoding it; raise ValueError if it cannot be one or is too large."""
    if isinstance(file, Path):
        check_regular_file(file)
    elif not file.getbuffer().nbytes:
        raise ValueError("empty file")
    try:
        return Image.open(file)
    except Image.DecompressionBombError as error:
        raise ValueError(f"too many pixels: {error}") from error


def check_regular_file(path: Path) -> None:
    """Raise ValueError if a path is a pipe or a device, which may block for ever, or an empty file."""
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # opening a folder raises anyway
        raise ValueError("not a regular file")
    if not found.st_size:
        raise ValueError("empty file")


def displayed_size(file: ImageFile) -> tuple[int, int]:
    """Read height and width of an image as displayed, from its header only."""
    with open_image(file) as opened:
        width, height = opened.size
        # For a TIFF, Pillow's size already accounts for the orientation. A PNG's own getexif() would read the
        # whole file, because EXIF may follow the pixels.
        is_sideways = opened.format != "TIFF" and _orientation(opened) in _SIDEWAYS_ORIENTATIONS
    return (width, height) if is_sideways else (height, width)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8."""
    try:
        return int(Image.Image.getexif(image).get(_EXIF_ORIENTATION, 1))
    except Exception:  # as in load_upright
        return 1
