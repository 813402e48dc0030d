"""Printed to handwritten digits, a synthetic-to-real problem without a download.

The fonts come with matplotlib and the handwritten digits with scikit-learn, which are dependencies of ducats.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError

CLASSES = tuple("0123456789")
HANDWRITTEN = 1797  # images in scikit-learn's copy of the UCI digits
SPLIT_SEED = 20260  # fixed: every run holds out the same images

# An explicit list, because matplotlib's other fonts have symbols or nothing at the digits' code points
# (and cmmi10 has old-style figures of three different heights).
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)

_MASTER = 64  # side of the master glyphs, which the images are warped from
_GLYPH = 44  # height of the ink in a master glyph
_STROKES = (0, 1, 2)  # thickening in master pixels
_OVERSAMPLING = 3  # warp at this multiple of the size, then shrink: avoids aliasing


def digits(*, source_size: int = 4000, test_size: int = 500, size: int = 16, seed: int = 0) -> Shift:
    """Make a task from printed digits (source) to 1797 handwritten digits (pool and test set).

    Images have one channel, with white ink on black. The split of the handwritten digits depends only on
    ``test_size``, not on the seed.

    Args:
        source_size: Number of printed images; classes are equally frequent.
        test_size: Number of held-out handwritten images; the others are the pool.
        size: Height and width in pixels.
        seed: Seed of the printed images (font, size, position, slant).
    """
    if source_size < len(CLASSES):
        raise UserError(f"digits: source_size must be at least {len(CLASSES)}, got {source_size}")
    if not 1 <= test_size < HANDWRITTEN:
        raise UserError(
            f"digits: test_size must be between 1 and {HANDWRITTEN - 1}, got {test_size};"
            f" there are {HANDWRITTEN} handwritten images"
        )
    if size < 8:
        raise UserError(f"digits: size must be at least 8 pixels, got {size}")
    source = _printed(source_size, size, np.random.default_rng(seed))
    pixels, labels = _handwritten(size)
    order = np.random.default_rng(SPLIT_SEED).permutation(HANDWRITTEN)
    test, pool = _pick(pixels, order[:test_size]), _pick(pixels, order[test_size:])
    return Shift(
        source=source,
        pool=pool,
        truth=labels[order[test_size:]],
        test=Domain(test, labels[order[:test_size]], CLASSES),
    )


def _pick(pixels: Tensor, rows: NDArray[np.int64]) -> Images:
    """Select images; their keys are indices into scikit-learn's data set."""
    return Images(tuple(f"handwritten/{row:04d}" for row in rows), pixels[rows])


def _handwritten(size: int) -> tuple[Tensor, Tensor]:
    """Load all handwritten digits: uint8 (1797, 1, size, size) and int64 (1797,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = (bunch.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8), values 0 to 16
    resized = [Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC) for image in grey]
    return _stack(resized), torch.from_numpy(bunch.target.astype(np.int64))


def _printed(count: int, size: int, generator: np.random.Generator) -> Domain:
    """Render ``count`` digits of balanced classes in random order."""
    labels = generator.permutation(np.arange(count) % len(CLASSES))
    glyphs = _masters()
    font = generator.integers(len(FONTS), size=count)
    stroke = generator.integers(len(_STROKES), size=count)
    drawn = [_warp(glyphs[font[i]][stroke[i]][labels[i]], size, generator) for i in range(count)]
    keys = tuple(f"printed/{i:05d}" for i in range(count))
    return Domain(Images(keys, _stack(drawn)), torch.from_numpy(labels.astype(np.int64)), CLASSES)


def _masters() -> list[list[list[Image.Image]]]:
    """Render the master glyphs, large and centred: ``[font][stroke][digit]``."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    missing = [name for name in FONTS if not (folder / f"{name}.ttf").is_file()]
    if missing:
        raise UserError(
            f"matplotlib's fonts are incomplete: {folder} lacks {', '.join(missing)};"
            " reinstall matplotlib from its wheel (pip install --force-reinstall matplotlib)"
        )
    return [
        [[_master(folder / f"{name}.ttf", digit, stroke) for digit in CLASSES] for stroke in _STROKES]
        for name in FONTS
    ]


def _master(font_file: Path, digit: str, stroke: int) -> Image.Image:
    """Render one digit in white on black, centred, with ink of height ``_GLYPH``."""
    font = ImageFont.truetype(font_file, 2 * _MASTER, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(digit)
    font = font.font_variant(size=2 * _MASTER * _GLYPH / (bottom - top))
    left, top, right, bottom = font.getbbox(digit)
    image = Image.new("L", (_MASTER, _MASTER), 0)
    corner = ((_MASTER - left - right) / 2, (_MASTER - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, digit, fill=255, font=font, stroke_width=stroke)
    return image


def _warp(glyph: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """Warp a glyph to ``size`` x ``size`` with random scale, position, slant, rotation, blur and ink."""
    draw = generator.uniform
    turn, slant = draw(-0.26, 0.26), draw(-0.25, 0.25)
    narrow, high = draw(0.75, 1.2), draw(0.85, 1.25)
    shape = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    shape = shape @ np.array([[narrow, slant], [0, high]])  # from master (relative to its centre) to image
    canvas = size * _OVERSAMPLING
    # PIL expects the inverse map, from output to input.
    inverse = np.linalg.inv(shape) * (_MASTER / canvas)
    place = canvas / 2 + draw(-0.08, 0.08, 2) * canvas
    offset = _MASTER / 2 - inverse @ place
    rows = (*inverse[0], offset[0], *inverse[1], offset[1])
    image = glyph.transform((canvas, canvas), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR)
    image = image.filter(ImageFilter.GaussianBlur(draw(0.0, 0.05) * canvas))
    image = image.resize((size, size), Image.Resampling.BOX)
    ink = draw(0.7, 1.2)
    return image.point([min(255, round(ink * level)) for level in range(256)])


def _stack(images: Sequence[Image.Image]) -> Tensor:
    """Stack grey images of one size: uint8 (N, 1, size, size)."""
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])[:, None])
