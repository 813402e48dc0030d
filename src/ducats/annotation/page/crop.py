"""Full-resolution crops around the pixels of a question, with an outline around them."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

MIN_CROP_CELLS = 8  # minimum side of a crop in grid cells, at any zoom
DEFAULT_CROP_CELLS = 32  # minimum side of a crop without zoom
CROP_GRID_DIVISOR = 4  # without zoom, a crop shows at least 1/4 of the grid's shorter side
CROP_MARGIN_FACTOR = 3  # a crop is at least this many times as wide as the question's pixels
OUTLINE_COLOUR, OUTLINE_BORDER_COLOUR = (255, 230, 0), (0, 0, 0)
POINTER_SIZE_DIVISOR = 30  # pointer lines are drawn at pixels smaller than 1/30 of the image side


class CropBox(NamedTuple):
    """A rectangle of an image, in image pixels."""

    left: float
    top: float
    right: float
    bottom: float


def crop_box(
    mask: np.typing.NDArray[np.bool_], size: tuple[int, int], zoom: int = 0, aspect_ratio: float = 1.0
) -> CropBox:
    """Return the part of an image to show around a question's pixels.

    Args:
        mask: the pixels, in the grid of the labels.
        size: width and height of the image.
        zoom: each step halves the sides; a negative step doubles them.
        aspect_ratio: aspect ratio (width / height), where the image is large enough.
    """
    ys, xs = np.nonzero(mask)
    rows, columns = mask.shape
    cell_width, cell_height = size[0] / columns, size[1] / rows  # image pixels per cell
    longest = max((xs.max() + 1 - xs.min()) * cell_width, (ys.max() + 1 - ys.min()) * cell_height)
    cell = (cell_width * cell_height) ** 0.5
    default_side = max(DEFAULT_CROP_CELLS, min(rows, columns) / CROP_GRID_DIVISOR) * cell
    side = max(default_side * 2.0**-zoom, MIN_CROP_CELLS * cell)
    # Keep all the pixels visible at any zoom.
    side = max(side, (CROP_MARGIN_FACTOR if zoom <= 0 else 1.25) * longest)
    left, right = _clamp_interval(cell_width * (xs.min() + xs.max() + 1) / 2, side * aspect_ratio, size[0])
    top, bottom = _clamp_interval(cell_height * (ys.min() + ys.max() + 1) / 2, side, size[1])
    return CropBox(left, top, right, bottom)


def _clamp_interval(middle: float, side: float, limit: int) -> tuple[float, float]:
    side = min(side, limit)
    start = min(max(middle - side / 2, 0.0), limit - side)
    return start, start + side


def draw_crop(
    image: Image.Image,
    pixels: np.typing.NDArray[np.bool_],
    box: CropBox,
    side: int,
    frame: CropBox | None = None,
) -> Image.Image:
    """Crop an image, resize the longer side to ``side`` pixels, and outline the question's pixels.

    The outline lies outside the pixels, which are left unchanged. A frame is drawn as a rectangle.
    """
    scale = side / max(box.right - box.left, box.bottom - box.top)
    width = max(1, round((box.right - box.left) * scale))
    height = max(1, round((box.bottom - box.top) * scale))
    crop = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC, box=box)
    rows, columns = pixels.shape
    xs = box.left + (np.arange(width) + 0.5) / scale
    ys = box.top + (np.arange(height) + 0.5) / scale
    at_x = np.minimum((xs * columns / image.width).astype(int), columns - 1)
    at_y = np.minimum((ys * rows / image.height).astype(int), rows - 1)
    mask = pixels[np.ix_(at_y, at_x)]
    if width < columns or height < rows:  # grid cells may fall between the pixels of a small image
        y, x = np.nonzero(pixels)
        across = ((x + 0.5) / columns * image.width - box.left) * scale
        down = ((y + 0.5) / rows * image.height - box.top) * scale
        is_inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
        mask[down[is_inside].astype(int), across[is_inside].astype(int)] = True
    if not mask.all():
        _outline(crop, mask)
    if frame is not None:
        origins = (box.left, box.top) * 2
        _frame(crop, [(edge - origin) * scale for edge, origin in zip(frame, origins, strict=True)])
    return crop


def _outline(crop: Image.Image, mask_array: np.typing.NDArray[np.bool_]) -> None:
    mask = Image.fromarray(mask_array.astype(np.uint8) * 255)
    near, far = mask.filter(ImageFilter.MaxFilter(5)), mask.filter(ImageFilter.MaxFilter(9))
    is_pixel = np.asarray(mask) > 0
    for colour, reached in ((OUTLINE_BORDER_COLOUR, far), (OUTLINE_COLOUR, near)):
        around = (np.asarray(reached) > 0) & ~is_pixel
        crop.paste(colour, mask=Image.fromarray(around.astype(np.uint8) * 255))
    ys, xs = np.nonzero(mask_array)
    reach = max(crop.size) // POINTER_SIZE_DIVISOR
    if not len(ys) or max(ys.max() - ys.min(), xs.max() - xs.min()) >= reach:
        return
    start, end = reach + 2, 2 * reach + 2
    pen, (x, y) = ImageDraw.Draw(crop), (int(xs.min() + xs.max()) // 2, int(ys.min() + ys.max()) // 2)
    for colour, width in ((OUTLINE_BORDER_COLOUR, 5), (OUTLINE_COLOUR, 2)):
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            line = [x + dx * start, y + dy * start, x + dx * end, y + dy * end]
            pen.line(line, colour, width)


def _frame(crop: Image.Image, edges: Sequence[float]) -> None:
    pen, (left, top, right, bottom) = ImageDraw.Draw(crop), edges
    right, bottom = min(right, crop.width - 1), min(bottom, crop.height - 1)
    for colour, width in ((OUTLINE_BORDER_COLOUR, 4), ((255, 255, 255), 2)):
        pen.rectangle([left, top, right, bottom], outline=colour, width=width)


def encode_image(image: Image.Image) -> tuple[bytes, str]:
    """Encode an image for browsers and return it with its media type; small images are lossless."""
    out = io.BytesIO()
    if image.width * image.height <= 256 * 256:
        image.save(out, "PNG")
        return out.getvalue(), "image/png"
    image.convert("RGB").save(out, "JPEG", quality=92, subsampling=0)
    return out.getvalue(), "image/jpeg"
