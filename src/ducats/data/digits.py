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

from ducats.data.domain import AdaptationData, Domain, Images
from ducats.utils.errors import UserError

DIGIT_CLASSES = tuple("0123456789")
N_HANDWRITTEN = 1797  # images in scikit-learn's copy of the UCI digits
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

_MASTER_SIDE = 64  # side of the master glyphs, which the images are warped from
_INK_HEIGHT = 44  # height of the ink in a master glyph
_STROKE_WIDTHS = (0, 1, 2)  # thickening in master pixels
_OVERSAMPLING = 3  # warp at this multiple of the size, then shrink: avoids aliasing


def digits(*, n_source: int = 4000, n_test: int = 500, size: int = 16, seed: int = 0) -> AdaptationData:
    """Make a task from printed digits (source) to 1797 handwritten digits (pool and test set).

    Images have one channel, with white ink on black. The split of the handwritten digits depends only on
    ``n_test``, not on the seed.

    Args:
        n_source: Number of printed images; classes are equally frequent.
        n_test: Number of held-out handwritten images; the others are the pool.
        seed: Seed of the printed images (font, size, position, slant).
    """
    if n_source < len(DIGIT_CLASSES):
        raise UserError(f"digits: n_source must be at least {len(DIGIT_CLASSES)}, got {n_source}")
    if not 1 <= n_test < N_HANDWRITTEN:
        raise UserError(
            f"digits: n_test must be between 1 and {N_HANDWRITTEN - 1}, got {n_test};"
            f" there are {N_HANDWRITTEN} handwritten images"
        )
    if size < 8:
        raise UserError(f"digits: size must be at least 8 pixels, got {size}")
    source = _render_printed(n_source, size, np.random.default_rng(seed))
    pixels, labels = _load_handwritten(size)
    order = np.random.default_rng(SPLIT_SEED).permutation(N_HANDWRITTEN)
    test, pool = _select_images(pixels, order[:n_test]), _select_images(pixels, order[n_test:])
    return AdaptationData(
        source=source,
        pool=pool,
        ground_truth=labels[order[n_test:]],
        test=Domain(test, labels[order[:n_test]], DIGIT_CLASSES),
    )


def _select_images(pixels: Tensor, indices: NDArray[np.int64]) -> Images:
    """Select images; their keys are indices into scikit-learn's data set."""
    return Images(tuple(f"handwritten/{index:04d}" for index in indices), pixels[indices])


def _load_handwritten(size: int) -> tuple[Tensor, Tensor]:
    """Load all handwritten digits: uint8 (1797, 1, size, size) and int64 (1797,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = (bunch.images * (255 / 16)).round().astype(np.uint8)  # (1797, 8, 8), values 0 to 16
    resized = [Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC) for image in grey]
    return _stack_images(resized), torch.from_numpy(bunch.target.astype(np.int64))


def _render_printed(count: int, size: int, generator: np.random.Generator) -> Domain:
    """Render ``count`` digits of balanced classes in random order."""
    labels = generator.permutation(np.arange(count) % len(DIGIT_CLASSES))
    glyphs = _render_masters()
    font = generator.integers(len(FONTS), size=count)
    stroke = generator.integers(len(_STROKE_WIDTHS), size=count)
    rendered = [_warp(glyphs[font[i]][stroke[i]][labels[i]], size, generator) for i in range(count)]
    keys = tuple(f"printed/{i:05d}" for i in range(count))
    return Domain(
        Images(keys, _stack_images(rendered)), torch.from_numpy(labels.astype(np.int64)), DIGIT_CLASSES
    )


def _render_masters() -> list[list[list[Image.Image]]]:
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
        [
            [_render_master(folder / f"{name}.ttf", digit, stroke) for digit in DIGIT_CLASSES]
            for stroke in _STROKE_WIDTHS
        ]
        for name in FONTS
    ]


def _render_master(font_file: Path, digit: str, stroke: int) -> Image.Image:
    """Render one digit in white on black, centred, with ink of height ``_INK_HEIGHT``."""
    font = ImageFont.truetype(font_file, 2 * _MASTER_SIDE, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(digit)
    font = font.font_variant(size=2 * _MASTER_SIDE * _INK_HEIGHT / (bottom - top))
    left, top, right, bottom = font.getbbox(digit)
    image = Image.new("L", (_MASTER_SIDE, _MASTER_SIDE), 0)
    corner = ((_MASTER_SIDE - left - right) / 2, (_MASTER_SIDE - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, digit, fill=255, font=font, stroke_width=stroke)
    return image


def _warp(glyph: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """Warp a glyph to ``size`` x ``size`` with random scale, position, slant, rotation, blur and ink."""
    uniform = generator.uniform
    rotation, shear = uniform(-0.26, 0.26), uniform(-0.25, 0.25)
    x_scale, y_scale = uniform(0.75, 1.2), uniform(0.85, 1.25)
    matrix = np.array([[np.cos(rotation), -np.sin(rotation)], [np.sin(rotation), np.cos(rotation)]])
    # From master (relative to its centre) to image.
    matrix = matrix @ np.array([[x_scale, shear], [0, y_scale]])
    canvas = size * _OVERSAMPLING
    # PIL expects the inverse map, from output to input.
    inverse = np.linalg.inv(matrix) * (_MASTER_SIDE / canvas)
    centre = canvas / 2 + uniform(-0.08, 0.08, 2) * canvas
    offset = _MASTER_SIDE / 2 - inverse @ centre
    coefficients = (*inverse[0], offset[0], *inverse[1], offset[1])
    image = glyph.transform((canvas, canvas), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    image = image.filter(ImageFilter.GaussianBlur(uniform(0.0, 0.05) * canvas))
    image = image.resize((size, size), Image.Resampling.BOX)
    ink = uniform(0.7, 1.2)
    return image.point([min(255, round(ink * level)) for level in range(256)])


def _stack_images(images: Sequence[Image.Image]) -> Tensor:
    """Stack grey images of one size: uint8 (N, 1, size, size)."""
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])[:, None])
