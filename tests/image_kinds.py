"""Images of every kind in the table of docs/own-data.md, each with the RGB pixels that it shows."""

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
VALUE_RANGE = (0, 4095)  # for the kinds with more than 8 bits
HEIGHT, WIDTH = 12, 16


class ImageKind(NamedTuple):
    """An image file, and what it shows."""

    name: str  # of the file
    write: Callable[[Path], object]
    shown: Array  # RGB or grey; more than 8 bits are shown with VALUE_RANGE
    needs_range: bool = False
    tolerance: int = 0  # of lossy formats


def colours(seed: int = 0) -> Array:
    """Return smooth colours, which lossy formats preserve well."""
    corners = np.random.default_rng(seed).integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(corners).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))


def tiff_bytes(
    pages: Sequence[Array], photometric: int = 1, extra: Sequence[int] = (), kind: int = 1
) -> bytes:
    """Return an uncompressed little-endian TIFF; a page is (height, width) or (height, width, bands)."""
    file = bytearray(b"II*\0" + struct.pack("<I", 8))
    for number, page in enumerate(pages):
        bands = page.shape[2] if page.ndim == 3 else 1
        data, bits = page.astype(page.dtype.newbyteorder("<")).tobytes(), page.dtype.itemsize * 8
        # Tag: format of a value, values. 273 is the offset of the data.
        tags = {256: ("H", [page.shape[1]]), 257: ("H", [page.shape[0]]), 258: ("H", [bits] * bands)}
        tags |= {259: ("H", [1]), 262: ("H", [photometric]), 273: ("I", [0]), 277: ("H", [bands])}
        tags |= {278: ("H", [page.shape[0]]), 279: ("I", [len(data)])}
        tags |= {338: ("H", list(extra))} if extra else {}
        tags |= {339: ("H", [kind] * bands)}
        packed = {tag: struct.pack(f"<{len(v)}{code}", *v) for tag, (code, v) in tags.items()}
        long_start = len(file) + 2 + 12 * len(tags) + 4
        data_start = long_start + sum(len(value) for value in packed.values() if len(value) > 4)
        packed[273] = struct.pack("<I", data_start)
        entries, long_values = b"", b""
        for tag, (code, values) in tags.items():
            value = packed[tag]
            entries += struct.pack("<HHI", tag, {"H": 3, "I": 4}[code], len(values))
            if len(value) > 4:
                entries += struct.pack("<I", long_start + len(long_values))
                long_values += value
            else:
                entries += value.ljust(4, b"\0")
        following = data_start + len(data) if number + 1 < len(pages) else 0
        file += struct.pack("<H", len(tags)) + entries + struct.pack("<I", following) + long_values + data
    return bytes(file)


def png16_bytes(values: Array) -> bytes:
    """Return a 16-bit PNG with 1, 2, 3 or 4 bands."""
    height, width = values.shape[:2]
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[values.shape[2] if values.ndim == 3 else 1]
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _windowed(values: Array) -> Array:
    """Map 0 .. 4095 to 0 .. 255, by exact arithmetic."""
    clipped = values.astype(np.int64).clip(*VALUE_RANGE)
    return ((clipped * 510 + 4095) // 8190).astype(np.uint8)


def image_kinds() -> list[ImageKind]:
    """Return every kind of image that can be read."""
    rgb, grey = colours(), colours(1)[..., 0]
    deep = np.random.default_rng(2).integers(0, 4096, (HEIGHT, WIDTH, 4)).astype(np.uint16)
    deep[0, :4] = 65535  # beyond the range: white
    alpha = np.where(np.arange(WIDTH) < 8, 255, 51).astype(np.uint8)[None].repeat(HEIGHT, 0)
    on_white = np.rint(rgb * (alpha / 255)[..., None] + 255 - alpha[..., None]).astype(np.uint8)
    palette = Image.fromarray(rgb).quantize(16)
    flat = np.asarray(palette.convert("RGB"))
    hidden = np.where((np.asarray(palette) == 3)[..., None], np.uint8(255), flat)
    cmyk = Image.fromarray(np.dstack([255 - rgb, np.full((HEIGHT, WIDTH), 40, np.uint8)]), "CMYK")
    cmyk_shown = np.rint(rgb * (215 / 255)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(rgb).transpose(Image.Transpose.ROTATE_90)
    others = [Image.fromarray(colours(seed)) for seed in (3, 4)]
    frames: dict[str, Any] = {"save_all": True, "append_images": others, "duration": 100}
    opaque = np.dstack([deep[..., :3], np.where(alpha == 255, 65535, 13107)]).astype(np.uint16)
    opaque_shown = _windowed(deep[..., :3]) * (alpha / 255)[..., None] + 255 - alpha[..., None]

    def pil(image: Any, **options: Any) -> Callable[[Path], object]:
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        return lambda path: image.save(path, **options)

    def raw(content: bytes) -> Callable[[Path], object]:
        return lambda path: path.write_bytes(content)

    signed = deep[..., 0].astype(np.int32)
    unsigned = np.where(deep[..., 0] > 4095, np.uint32(3_000_000_000), deep[..., 0])
    pgm = b"P5 16 12 4095\n" + deep[..., 0].clip(0, 4095).astype(">u2").tobytes()
    return [
        ImageKind("rgb.png", pil(rgb), rgb),
        ImageKind("grey.png", pil(grey), grey),
        ImageKind("one-bit.png", pil(Image.fromarray(grey > 128)), np.uint8(255) * (grey > 128)),
        ImageKind("exif.jpg", pil(turned, exif=exif, quality=95), rgb, tolerance=12),
        ImageKind("exif.png", pil(turned, exif=exif), rgb),
        ImageKind("rgba.png", pil(np.dstack([rgb, alpha])), on_white, tolerance=1),
        ImageKind("rgba.tif", pil(np.dstack([rgb, alpha])), on_white, tolerance=1),
        ImageKind("palette.png", pil(palette), flat),
        ImageKind("palette-transparent.png", pil(palette, transparency=3), hidden),
        ImageKind("cmyk.jpg", pil(cmyk, quality=95), cmyk_shown, tolerance=14),
        ImageKind("cmyk.tif", pil(cmyk), cmyk_shown, tolerance=1),
        ImageKind("animated.gif", pil(palette, **frames), flat),
        ImageKind("animated.png", pil(rgb, **frames), rgb),
        ImageKind("animated.webp", pil(rgb, lossless=True, **frames), rgb),
        ImageKind("preview.tif", raw(tiff_bytes([grey, grey[::2, ::2]])), grey),
        ImageKind("twelve-in-sixteen.png", raw(png16_bytes(deep[..., 0])), _windowed(deep[..., 0]), True),
        ImageKind("sixteen.tif", pil(deep[..., 0]), _windowed(deep[..., 0]), True),
        ImageKind("sixteen.pgm", pil(deep[..., 0]), _windowed(deep[..., 0]), True),
        ImageKind("twelve.pgm", raw(pgm), _windowed(deep[..., 0]), True),
        ImageKind("sixteen-rgb.png", raw(png16_bytes(deep[..., :3])), _windowed(deep[..., :3]), True),
        ImageKind("sixteen-rgba.png", raw(png16_bytes(opaque)), np.rint(opaque_shown), True, tolerance=1),
        ImageKind("sixteen-rgb.tif", raw(tiff_bytes([deep[..., :3]], 2)), _windowed(deep[..., :3]), True),
        ImageKind(
            "white-is-zero.tif", raw(tiff_bytes([deep[..., 0]], 0)), 255 - _windowed(deep[..., 0]), True
        ),
        ImageKind("signed.tif", raw(tiff_bytes([signed - 9], kind=2)), _windowed(signed - 9), True),
        ImageKind("unsigned.tif", raw(tiff_bytes([unsigned])), _windowed(unsigned), True),
        ImageKind("float.tif", pil(deep[..., 0].astype(np.float32)), _windowed(deep[..., 0]), True),
    ]


def refused_kinds() -> dict[str, tuple[bytes, str]]:
    """Return images whose bands or values would be lost, with a part of the reason, by file name."""
    bands = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 6)).astype(np.uint8)
    deep = bands.astype(np.uint16)
    return {
        "six-bands.tif": (tiff_bytes([bands], 1, [0] * 5), "8 bits, 6 bands"),
        "six-bands-rgb.tif": (tiff_bytes([bands], 2, [0] * 3), "8 bits, 6 bands"),
        "six-pages.tif": (tiff_bytes([bands[..., band] for band in range(6)]), "8 bits, 6 bands"),
        "three-pages.tif": (tiff_bytes([bands[..., band] for band in range(3)]), "neither grey nor RGB"),
        "rgb-and-infrared.tif": (tiff_bytes([bands[..., :4]], 2, [0]), "8 bits, 4 bands"),
        "six-deep-bands.tif": (tiff_bytes([deep], 1, [0] * 5), "16 bits, 6 bands"),
        "signed-bytes.tif": (tiff_bytes([bands[..., 0]], kind=2), "8 bits, 1 band: this format"),
        "double.tif": (tiff_bytes([bands[..., 0].astype(float)], kind=3), "64 bits, 1 band: this format"),
        "not-a-number.tif": (tiff_bytes([np.full((4, 4), np.nan, np.float32)], kind=3), "not numbers"),
        "grey-alpha.png": (png16_bytes(deep[..., :2]), "16 bits, 2 bands"),
        "deep.ppm": (b"P6 2 2 4095\n" + bytes(24), "16 bits, 3 bands"),
    }
