"""Crops around the pixels that a question is about, in its own resolution, with a line around them."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ducats.answers import Place

LEAST, USUAL, SHARE = (
    8,
    32,
    4,
)  # grid cells that a crop shows: at least, as a rule at least, and 1/4 of the grid
AROUND = 3  # a crop is so many times as wide as what is asked, or wider
LIGHT, DARK = (255, 230, 0), (0, 0, 0)
SMALL = 30  # what is shown smaller than the picture's side by this gets lines that point at it


class Box(NamedTuple):
    """A part of an image, in its pixels."""

    left: float
    top: float
    right: float
    bottom: float


def mask_of(places: Sequence[Place]) -> np.typing.NDArray[np.bool_]:
    """True where any of the places is: ``(height, width)`` of their grid."""
    asked = np.zeros(places[0].height * places[0].width, np.bool_)
    for place in places:
        for start, length in place.runs:
            asked[start : start + length] = True
    return asked.reshape(places[0].height, places[0].width)


def window(
    asked: np.typing.NDArray[np.bool_], size: tuple[int, int], zoom: int = 0, wide: float = 1.0
) -> Box:
    """Which part of an image to show around what is asked.

    Args:
        asked: where it is, in the grid.
        size: the image's width and height.
        zoom: each step halves (or, below 0, doubles) the sides.
        wide: width by height, where the image has room for it.
    """
    ys, xs = np.nonzero(asked)
    rows, columns = asked.shape
    across, down = size[0] / columns, size[1] / rows  # image pixels per cell
    longest = max((xs.max() + 1 - xs.min()) * across, (ys.max() + 1 - ys.min()) * down)
    cell = (across * down) ** 0.5
    usual = max(USUAL, min(rows, columns) / SHARE) * cell
    side = max(usual * 2.0**-zoom, LEAST * cell)
    # However far it is zoomed in, all that is asked stays in sight.
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
    """A part of an image, its longer side made ``side`` long, with a line around what is asked.

    The line lies outside: what is asked is shown as it is.

    Args:
        image: the whole of it.
        asked: in the grid.
        box: which part.
        side: in pixels.
        frame: another part to draw a frame around.
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
    if width < columns or height < rows:  # cells may fall between the pixels of a small picture
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
    """As a file for browsers, and its media type; small ones without loss."""
    out = io.BytesIO()
    if image.width * image.height <= 256 * 256:
        image.save(out, "PNG")
        return out.getvalue(), "image/png"
    image.convert("RGB").save(out, "JPEG", quality=92, subsampling=0)
    return out.getvalue(), "image/jpeg"
