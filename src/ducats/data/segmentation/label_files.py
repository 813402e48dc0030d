"""Read label and mask files as stored, without colour conversion."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ducats.data.domain import VOID
from ducats.data.segmentation.label_encoding import LabelFormat
from ducats.utils.errors import InvalidFileError
from ducats.utils.image_files import check_regular_file, load_upright, open_image

_Array = NDArray[Any]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _GREY_ALPHA, _RGB_ALPHA = 0, 2, 4, 6  # PNG colour types
_GREY_SCALE = {2: 85, 4: 17}  # Pillow scales 2- and 4-bit grey to 0..255; this undoes it
_LOSSLESS_FORMATS = ("BMP", "GIF", "PNG", "PPM", "TIFF")
LOSSY_SUFFIXES = frozenset({".jpg", ".jpeg", ".webp"})  # formats that change or may change values


def read_ids(path: Path, label_format: LabelFormat) -> _Array:
    """Return the raw ids of a label file: (height, width); raise InvalidFileError if it has none."""
    if label_format == "colours":
        colours = _read_colours(path).astype(np.int64)
        ids: _Array = colours[..., 0] << 16 | colours[..., 1] << 8 | colours[..., 2]
        return ids
    channels = read_channels(path)
    if channels.ndim == 2:
        return channels
    if label_format == "ids" and not (channels == channels[..., :1]).all():
        raise InvalidFileError(
            "its channels differ; set data.params.label_format=red_channel if the ids are in the red channel,"
            " or give a class list with colours (r g b name)"
        )
    return np.ascontiguousarray(channels[..., 0])


def read_mask(path: Path) -> _Array:
    """Return where a file is non-zero in any channel: uint8 (height, width), 0 or 1."""
    channels = read_channels(path)
    mask: _Array = (channels != 0 if channels.ndim == 2 else (channels != 0).any(-1)).astype(np.uint8)
    return mask


def read_channels(path: Path) -> _Array:
    """Return the stored values: (height, width), or (height, width, 3) for colours; alpha is dropped.

    Palette images give palette indices, not colours. 16-bit values are not scaled.
    """
    depth, colour_type = _png_header(path)
    if depth == 16 and colour_type != _GREY:
        return _read_16_bit_channels(path, colour_type)
    image = load_upright(path)
    if image.mode in ("RGB", "RGBA"):
        return np.asarray(image)[..., :3]
    if image.mode in ("LA", "PA"):
        return np.asarray(image)[..., 0]
    if image.mode not in ("L", "P", "1", "I") and not image.mode.startswith("I;16"):
        raise InvalidFileError(f"pixels of mode {image.mode} cannot be ids; save as PNG with 8 or 16 bits")
    values = np.asarray(image)
    if colour_type == _GREY and depth in _GREY_SCALE:
        return values // np.uint8(_GREY_SCALE[depth])
    return values.astype(np.uint8) if image.mode == "1" else values


def resize_label_map(values: _Array, height: int, width: int) -> _Array:
    """Resize with Pillow's nearest-neighbour filter."""
    if values.shape == (height, width):
        return values
    dtype = np.dtype(np.uint8 if values.itemsize == 1 else np.int32)  # Pillow has modes for these
    image = Image.fromarray(values.view(dtype) if values.itemsize == 1 else values.astype(dtype))
    resized = np.asarray(image.resize((width, height), Image.Resampling.NEAREST))
    return resized.view(values.dtype) if values.itemsize == 1 else resized.astype(values.dtype)


def void_mask(label_map: torch.Tensor) -> torch.Tensor:
    """Return which pixels of a label map are void: uint8, 0 or 1."""
    return (label_map == VOID).to(torch.uint8)


def _read_colours(path: Path) -> _Array:
    """Return the displayed colours: uint8 (height, width, 3)."""
    if _png_header(path)[0] == 16:
        raise InvalidFileError("16-bit colours are not supported; save with 8 bits")
    image = load_upright(path)
    if image.mode.startswith(("I", "F")):
        raise InvalidFileError(f"pixels of mode {image.mode} cannot be colours; save as PNG with 8 bits")
    return np.asarray(image.convert("RGB"))


def _png_header(path: Path) -> tuple[int, int]:
    """Return bit depth and colour type of a PNG from its header; (0, 0) for other lossless formats."""
    check_regular_file(path)
    with path.open("rb") as file:
        header = file.read(26)
    if header.startswith(_SIGNATURE) and len(header) == 26:
        return header[24], header[25]
    with open_image(path) as opened:
        if path.suffix.lower() == ".png" or opened.format not in _LOSSLESS_FORMATS:
            raise InvalidFileError(
                f"its content is {opened.format}, which may change class ids; save it as PNG"
            )
    return 0, 0


def _read_16_bit_channels(path: Path, colour_type: int) -> _Array:
    """Read a 16-bit PNG with several channels, which Pillow would reduce to the upper 8 bits."""
    from torchvision.io import ImageReadMode, decode_png  # takes a second to import

    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    image = decode_png(content, ImageReadMode.UNCHANGED, apply_exif_orientation=True)
    channels: _Array = image.permute(1, 2, 0).numpy()
    return channels[..., 0] if colour_type == _GREY_ALPHA else channels[..., :3]
