"""Full-resolution crops around the pixels of a question, with an outline around them."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ducats.annotation import QuestionArea

LEAST, USUAL, SHARE = (
    8,
    32,
    4,
)  # side of a crop in grid cells: minimum, default minimum, and divisor of the grid's shorter side
AROUND = 3  # a crop is at least this many times as wide as the question's pixels
LIGHT, DARK = (255, 230, 0), (0, 0, 0)
SMALL = 30  # pointer lines are drawn at pixels smaller than 1/30 of the image side


class Box(NamedTuple):
    """A rectangle of an image, in image pixels."""

    left: float
    top: float
    right: float
    bottom: float


def mask_of(places: Sequence[QuestionArea]) -> np.typing.NDArray[np.bool_]:
    """Return a ``(height, width)`` mask of the grid, True at the pixels of any of the places."""
    asked = np.zeros(places[0].height * places[0].width, np.bool_)
    for place in places:
        for start, length in place.runs:
            asked[start : start + length] = True
    return asked.reshape(places[0].height, places[0].width)


def window(
    asked: np.typing.NDArray[np.bool_], size: tuple[int, int], zoom: int = 0, wide: float = 1.0
) -> Box:
    """Return the part of an image to show around a question's pixels.

    Args:
        asked: mask of the pixels in the grid.
        size: width and height of the image.
        zoom: each step halves the sides; a negative step doubles them.
        wide: aspect ratio (width / height), where the image is large enough.
    """
    ys, xs = np.nonzero(asked)
    rows, columns = asked.shape
    across, down = size[0] / columns, size[1] / rows  # image pixels per cell
    longest = max((xs.max() + 1 - xs.min()) * across, (ys.max() + 1 - ys.min()) * down)
    cell = (across * down) ** 0.5
    usual = max(USUAL, min(rows, columns) / SHARE) * cell
    side = max(usual * 2.0**-zoom, LEAST * cell)
    # Keep all the pixels visible at any zoom.
    side = max(side, (AROUND if zoom <= 0 else 1.25) * longest)
    left, right = _within(across * (xs.min() + xs.max() + 1) / 2, side * wide, size[0])
    top, bottom = _within(down * (ys.min() + ys.max() + 1) / 2, side, size[1])
    return Box(left, top, right, bottom)


def _within(middle: float, side: float, most: int) -> tuple[float, float]:
    side = min(side, most)
    start = min(max(middle - side / 2, 0.0), most - side)
    return start, start + side


def draw(
    image: Image.Image,
    asked: np.typing.NDArray[np.bool_],
    box: Box,
    side: int,
    frame: Box | None = None,
) -> Image.Image:
    """Crop an image, resize the longer side to ``side`` pixels, and outline the question's pixels.

    The outline lies outside the pixels, which are left unchanged.

    Args:
        image: the whole image.
        asked: mask of the pixels in the grid.
        box: the part to show.
        side: length of the longer side, in pixels.
        frame: another part, drawn as a rectangle.
    """
    scale = side / max(box.right - box.left, box.bottom - box.top)
    width = max(1, round((box.right - box.left) * scale))
    height = max(1, round((box.bottom - box.top) * scale))
    shown = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC, box=box)
    rows, columns = asked.shape
    xs = box.left + (np.arange(width) + 0.5) / scale
    ys = box.top + (np.arange(height) + 0.5) / scale
    at_x = np.minimum((xs * columns / image.width).astype(int), columns - 1)
    at_y = np.minimum((ys * rows / image.height).astype(int), rows - 1)
    lit = asked[np.ix_(at_y, at_x)]
    if width < columns or height < rows:  # grid cells may fall between the pixels of a small image
        y, x = np.nonzero(asked)
        across = ((x + 0.5) / columns * image.width - box.left) * scale
        down = ((y + 0.5) / rows * image.height - box.top) * scale
        seen = (across >= 0) & (across < width) & (down >= 0) & (down < height)
        lit[down[seen].astype(int), across[seen].astype(int)] = True
    if not lit.all():
        _outline(shown, lit)
    if frame is not None:
        _frame(
            shown,
            [(edge - origin) * scale for edge, origin in zip(frame, (box.left, box.top) * 2, strict=True)],
        )
    return shown


def _outline(shown: Image.Image, lit: np.typing.NDArray[np.bool_]) -> None:
    mask = Image.fromarray(lit.astype(np.uint8) * 255)
    near, far = mask.filter(ImageFilter.MaxFilter(5)), mask.filter(ImageFilter.MaxFilter(9))
    hidden = np.asarray(mask) > 0
    shown.paste(DARK, mask=Image.fromarray(((np.asarray(far) > 0) & ~hidden).astype(np.uint8) * 255))
    shown.paste(LIGHT, mask=Image.fromarray(((np.asarray(near) > 0) & ~hidden).astype(np.uint8) * 255))
    ys, xs = np.nonzero(lit)
    reach = max(shown.size) // SMALL
    if not len(ys) or max(ys.max() - ys.min(), xs.max() - xs.min()) >= reach:
        return
    start, end = reach + 2, 2 * reach + 2
    pen, (x, y) = ImageDraw.Draw(shown), (int(xs.min() + xs.max()) // 2, int(ys.min() + ys.max()) // 2)
    for colour, width in ((DARK, 5), (LIGHT, 2)):
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            line = [x + dx * start, y + dy * start, x + dx * end, y + dy * end]
            pen.line(line, colour, width)


def _frame(shown: Image.Image, edges: Sequence[float]) -> None:
    pen, (left, top, right, bottom) = ImageDraw.Draw(shown), edges
    right, bottom = min(right, shown.width - 1), min(bottom, shown.height - 1)
    for colour, width in ((DARK, 4), ((255, 255, 255), 2)):
        pen.rectangle([left, top, right, bottom], outline=colour, width=width)


def encoded(image: Image.Image) -> tuple[bytes, str]:
    """Encode an image for browsers and return it with its media type; small images are lossless."""
    out = io.BytesIO()
    if image.width * image.height <= 256 * 256:
        image.save(out, "PNG")
        return out.getvalue(), "image/png"
    image.convert("RGB").save(out, "JPEG", quality=92, subsampling=0)
    return out.getvalue(), "image/jpeg"
