"""Reading image files as a viewer shows them: upright, opaque, 8 bits per value.

`ducats export` copies this file next to an exported model, so it must not import from this package.
"""

import re
import stat
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from PIL.ImageFile import ImageFile as OpenedImage

IMAGE_FILE_SUFFIXES = frozenset(  # in lower case
    {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
)
ImageFile = Path | BytesIO  # an image file, or its contents
ValueRange = tuple[float, float]  # the values that become black and white
_EXIF_ORIENTATION, _SIDEWAYS_ORIENTATIONS = 0x0112, (5, 6, 7, 8)  # in EXIF
_BITS, _PHOTOMETRIC, _BANDS, _SAMPLE_FORMAT, _PAGE_KIND = 258, 262, 277, 339, 254  # TIFF tags
_WHITE_IS_ZERO, _UNSIGNED, _SIGNED, _FLOAT, _REDUCED_OR_MASK = 0, 1, 2, 3, 0b101  # values of these tags
# Pillow reads only the upper 8 bits of 16-bit colours, and the lower ones if the byte order is swapped.
_16_BIT_COLOUR = re.compile(r"(RGBA?);16([BLN])")
_SWAPPED_BYTES = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_USUAL_WHITE = (1023, 4095, 16383, 65535)  # largest values with 10, 12, 14 and 16 bits


class PixelFormatError(ValueError):
    """An image that can be decoded, but not turned into 8-bit grey or RGB without guessing."""


class MissingRangeError(PixelFormatError):
    """An image with more than 8 bits per value, but no range."""


class PixelFormat(NamedTuple):
    """How an image file stores its pixels."""

    bits: int  # per value
    bands: int  # 1 for a palette; all pages of a TIFF together
    is_float: bool = False

    def __str__(self) -> str:
        number = "floating point, " if self.is_float else ""
        return f"{number}{self.bits} bit{'s' * (self.bits > 1)}, {self.bands} band{'s' * (self.bands > 1)}"

    @property
    def needs_range(self) -> bool:
        """Whether the values of black and white cannot be known from the file."""
        return self.bits > 8


def is_image_name(name: str) -> bool:
    """Return whether a file name is that of a visible image file.

    >>> [is_image_name(name) for name in ("a.JPG", ".a.jpg", "a.txt", "jpg")]
    [True, False, False, False]
    """
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_FILE_SUFFIXES


def load_image(file: ImageFile, value_range: ValueRange | None = None) -> Image.Image:
    """Load an image upright and opaque, as 8-bit grey or RGB.

    Args:
        value_range: For images with more than 8 bits per value: the values that become black and white.
            Values in between are mapped linearly, values beyond are clipped.

    Raises:
        MissingRangeError: The image has more than 8 bits per value and no range is given.
        PixelFormatError: Bands would be dropped, or values misread.
    """
    with open_image(file) as opened:
        pixel_format = _check_format(opened)
        if pixel_format.needs_range:
            return _load_deep(file, opened, pixel_format, value_range)
        image = _load_upright(opened)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB") if image.mode not in ("L", "RGB") else image


def check_image(file: ImageFile, value_range: ValueRange | None = None) -> None:
    """Raise as ``load_image`` does, except for damage behind the header; fast unless it raises."""
    with open_image(file) as opened:
        needs_range = _check_format(opened).needs_range
    if needs_range and value_range is None:
        load_image(file)


def load_upright(file: ImageFile) -> Image.Image:
    """Load an image in its own mode, rotated according to its EXIF orientation."""
    with open_image(file) as opened:
        return _load_upright(opened)


def read_pixel_format(file: ImageFile) -> PixelFormat:
    """Read the pixel format of an image from its headers."""
    with open_image(file) as opened:
        return _pixel_format(opened)


def value_limits(file: ImageFile) -> tuple[float, float]:
    """Return the smallest and largest value of an image with more than 8 bits per value."""
    with open_image(file) as opened:
        colours, _ = _deep_values(file, opened, _check_format(opened))
    return float(colours.min()), float(colours.max())


def suggest_range(smallest: float, largest: float, *, is_float: bool = False) -> str:
    """Suggest a range for images with these values.

    >>> suggest_range(7, 4012), suggest_range(-1024, 3071), suggest_range(0.1, 0.9, is_float=True)
    ('[0,4095]', '[-1024,4095]', '[0,1]')
    """
    usual = (1.0,) if is_float else _USUAL_WHITE
    white = next((white for white in usual if white >= largest), largest)
    return f"[{min(smallest, 0):.12g},{white:.12g}]"


def open_image(file: ImageFile) -> OpenedImage:
    """Open an image without decoding it; raise ValueError if it cannot be one or is too large."""
    if isinstance(file, Path):
        check_regular_file(file)
    elif not file.getbuffer().nbytes:
        raise ValueError("empty file")
    try:
        return Image.open(file)
    except Image.DecompressionBombError as error:
        raise ValueError(f"too many pixels: {error}") from error
    except UnidentifiedImageError:
        pixel_format = _tiff_format(file)
        if pixel_format is None:
            raise
        raise _refusal(pixel_format, has_other_bands=pixel_format.bands not in (1, 3)) from None


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
    except Exception:  # as in _load_upright
        return 1


def _load_upright(opened: OpenedImage) -> Image.Image:
    opened.load()
    try:
        return ImageOps.exif_transpose(opened)
    except Exception:  # broken EXIF, but the image is fine: return it unrotated
        return opened.copy()


# ---- pixel formats


def _pixel_format(opened: OpenedImage) -> PixelFormat:
    if isinstance(opened, TiffImagePlugin.TiffImageFile):
        stored = _format_from_tags(opened.tag_v2)
        return stored._replace(bands=stored.bands * _count_pages(opened))
    bands = 1 if opened.mode == "P" else len(opened.getbands())
    if opened.mode == "1":
        return PixelFormat(1, bands)
    if opened.mode == "F" or (opened.mode == "I" and opened.format != "PPM"):
        return PixelFormat(32, bands, opened.mode == "F")
    # A grey PNG with alpha is opened as RGBA.
    bands = 2 if "LA;16" in _raw_mode(opened) else bands
    is_deep = opened.mode[0] == "I" or re.search(";16[BLN]", _raw_mode(opened)) or _ppm_white(opened) > 255
    return PixelFormat(16 if is_deep else 8, bands)


def _format_from_tags(tags: Any) -> PixelFormat:
    return PixelFormat(
        max(tags.get(_BITS, (1,))), int(tags.get(_BANDS, 1)), _FLOAT in tags.get(_SAMPLE_FORMAT, (1,))
    )


def _tiff_format(file: ImageFile) -> PixelFormat | None:
    """Return the format of a TIFF that Pillow cannot open; None if it is not one."""
    with file.open("rb") if isinstance(file, Path) else BytesIO(file.getvalue()) as stream:
        try:
            tags = TiffImagePlugin.ImageFileDirectory_v2(stream.read(8))
            stream.seek(tags.next)
            tags.load(stream)
            return _format_from_tags(tags) if _BITS in tags else None
        except Exception:  # not a TIFF, or a corrupt one
            return None


def _count_pages(opened: TiffImagePlugin.TiffImageFile) -> int:
    """Count the pages of a TIFF that are as large as the first: bands or slices, not previews or masks."""
    size, pages = opened.size, 1
    if not opened.is_animated:
        return 1
    for page in range(1, opened.n_frames):
        opened.seek(page)
        pages += opened.size == size and not opened.tag_v2.get(_PAGE_KIND, 0) & _REDUCED_OR_MASK
    opened.seek(0)
    return pages


def _raw_mode(opened: OpenedImage) -> str:
    """Return the layout of the stored pixels, such as ``RGB;16B``."""
    arguments = opened.tile[0].args if opened.tile else ()
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _ppm_white(opened: OpenedImage) -> int:
    """Return the largest value that a PGM or PPM file declares; Pillow scales it to 255 or 65535."""
    arguments = opened.tile[0].args if opened.format == "PPM" and opened.tile else None
    if isinstance(arguments, tuple) and len(arguments) > 1 and isinstance(arguments[1], int):
        return arguments[1] if opened.tile[0].codec_name.startswith("ppm") else 255
    return 255


def _check_format(opened: OpenedImage) -> PixelFormat:
    """Return the pixel format; raise if bands would be dropped or values misread."""
    pixel_format = _pixel_format(opened)
    if isinstance(opened, TiffImagePlugin.TiffImageFile):
        has_other_bands = pixel_format.bands > len(opened.getbands())
        if has_other_bands or (pixel_format.bits == 8 and _SIGNED in _sample_formats(opened)):
            raise _refusal(pixel_format, has_other_bands=has_other_bands)
    if pixel_format.needs_range:
        is_supported = opened.mode[0] in "IF" or _16_BIT_COLOUR.fullmatch(_raw_mode(opened))
        if "transparency" in opened.info or not is_supported:
            raise PixelFormatError(f"{pixel_format}: this format cannot be read; save it with 8 bits")
    return pixel_format


def _sample_formats(opened: OpenedImage) -> tuple[int, ...]:
    """Return the kind of number of each band of a TIFF; unsigned integers in other files."""
    return tuple(getattr(opened, "tag_v2", {}).get(_SAMPLE_FORMAT, (_UNSIGNED,)))


def _refusal(pixel_format: PixelFormat, *, has_other_bands: bool) -> PixelFormatError:
    if has_other_bands:
        reason = ", which is neither grey nor RGB; save one or three bands that the model should see"
    else:
        reason = ": this format cannot be read; save it with 8 or 16 bits, unsigned"
    return PixelFormatError(f"{pixel_format}{reason}")


# ---- more than 8 bits per value


def _load_deep(
    file: ImageFile, opened: OpenedImage, pixel_format: PixelFormat, value_range: ValueRange | None
) -> Image.Image:
    """Load an image with more than 8 bits per value."""
    is_inverted = (
        pixel_format.bands == 1 and getattr(opened, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    )
    colours, alpha = _deep_values(file, opened, pixel_format)
    if value_range is None:
        smallest, largest = float(colours.min()), float(colours.max())
        suggested = suggest_range(smallest, largest, is_float=pixel_format.is_float)
        raise MissingRangeError(
            f"{pixel_format}, largest value {largest:.12g}: set data.params.range, such as"
            f" data.params.range={suggested}, or save it with 8 bits"
        )
    black, white = value_range
    shown = ((colours.astype(np.float64) - black) / (white - black)).clip(0, 1)
    if is_inverted:
        shown = 1 - shown
    if alpha is not None:
        shown = 1 - (1 - shown) * (alpha / 65535)
    return Image.fromarray((shown * 255).round().astype(np.uint8))


def _deep_values(
    file: ImageFile, opened: OpenedImage, pixel_format: PixelFormat
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the stored values, upright: (height, width) or (height, width, 3), and 16-bit alpha if any."""
    raw_mode, ppm_white = _raw_mode(opened), _ppm_white(opened)
    colour = _16_BIT_COLOUR.fullmatch(raw_mode)
    values: NDArray[Any] = np.asarray(_load_upright(opened))
    if not np.isfinite(values).all():
        raise PixelFormatError(f"{pixel_format}, and some values are not numbers; replace them")
    if opened.format == "PPM" and opened.mode == "I":
        return (np.rint(values / 65535 * ppm_white).astype(np.int32) if ppm_white > 255 else values), None
    if colour is None:
        # Pillow reads unsigned 32-bit values as signed ones.
        is_unsigned = pixel_format.bits == 32 and values.dtype == np.int32 and opened.format == "TIFF"
        is_unsigned &= _UNSIGNED in _sample_formats(opened)
        return (values.view(np.uint32) if is_unsigned else values), None
    with open_image(file) as again:
        low_mode = f"{colour[1]};16{_SWAPPED_BYTES[colour[2]]}"
        again.tile = [
            tile._replace(args=(low_mode, *tile.args[1:]) if isinstance(tile.args, tuple) else low_mode)
            for tile in again.tile
        ]
        low_bytes = np.asarray(_load_upright(again))
    values = values.astype(np.uint16) * np.uint16(256) + low_bytes
    return values[..., :3], values[..., 3:] if values.shape[2] == 4 else None
