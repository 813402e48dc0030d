"""Figure of labelled pixels: one row per image, one column per round."""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ducats.annotation.oracles.display_image import load_display_image
from ducats.config import Config
from ducats.data import resolve_dataset
from ducats.data.decoding import decode_images
from ducats.data.domain import Images
from ducats.data.segmentation import SegmentationReader
from ducats.run.factory import load_data
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically
from ducats.utils.palette import Colour, class_colours

_IntArray = np.ndarray[Any, Any]

TILE_WIDTH = 360  # width of an image: six rounds fit on a screen, and a single pixel is visible
GAP_PIXELS = 8
FONT_SIZE = 15
LINE_HEIGHT = FONT_SIZE + 9
EARLIER_PIXEL_COLOUR: Colour = (76, 201, 240)
NEW_PIXEL_COLOUR: Colour = (255, 210, 0)
BACKGROUND_COLOUR: Colour = (255, 255, 255)
_TEXT_COLOUR: Colour = (27, 30, 36)
_MUTED_TEXT_COLOUR: Colour = (90, 98, 112)
_DARK_BRIGHTNESS = 0.38  # brightness of the image below highlighted pixels
_LIGHT_OPACITY = 0.3  # opacity of the image on white below class colours
VOID_COLOUR: Colour = (57, 255, 20)


class ImageLabelsLike(Protocol):
    """Labels of an image in the ledger's order."""

    @property
    def position(self) -> Tensor:
        """Pixel positions ``y * width + x``."""

    @property
    def label(self) -> Tensor:
        """Classes or VOID."""


class LedgerLike(Protocol):
    """The attributes of a ledger that the figure needs."""

    @property
    def keys(self) -> Sequence[str]:
        """Names of the pool's images."""

    @property
    def sizes(self) -> Tensor | None:
        """Labelling grid of each image, height and width; None if whole images were labelled."""

    @property
    def n_rounds(self) -> int:
        """Number of labelled rounds."""

    def labels_per_image(self, n_rounds: int | None = None) -> Tensor:
        """Number of labels of each image in the first ``n_rounds`` rounds; None: all."""

    def image_labels(self, image: int, n_rounds: int | None = None) -> ImageLabelsLike:
        """Labels of an image in the first ``n_rounds`` rounds; None: all."""


def write_picks_figure(
    ledger: LedgerLike,
    images: Images,
    out: Path,
    *,
    classes: Sequence[str] = (),
    rounds: Sequence[int] | None = None,
    image_keys: Sequence[str] | None = None,
    n_images: int = 4,
) -> Path:
    """Write a PNG of the labelled pixels: new ones of each round in yellow, earlier ones in blue.

    The last column shows all labels in the colours of their classes.

    Args:
        ledger: ledger of a segmentation run.
        images: the pool, or at least the images shown.
        classes: class names for colours and legend.
        rounds: rounds with a column, default all; labels since the previous column count as new.
        image_keys: keys of the images; default: evenly spaced among those with labels.
        n_images: number of images if ``image_keys`` is None.
    """
    index_by_key = {key: index for index, key in enumerate(ledger.keys)}
    image_indices = [index_by_key[key] for key in select_image_keys(ledger, image_keys, n_images)]
    sizes = ledger.sizes
    assert sizes is not None
    shown_rounds = sorted(set(range(1, ledger.n_rounds + 1) if rounds is None else rounds))
    if not shown_rounds or shown_rounds[0] < 1 or shown_rounds[-1] > ledger.n_rounds:
        raise UserError(f"cannot show rounds {shown_rounds}; this run has rounds 1 to {ledger.n_rounds}")
    rows = []
    for number in image_indices:
        height, width = (int(side) for side in sizes[number])
        display_image = load_display_image(images, _image_index(images, ledger.keys[number]))
        rows.append(_draw_row(ledger, number, display_image, (height, width), shown_rounds, classes))
    titles = [*(f"round {number}" for number in shown_rounds), "labels"]
    shown_labels = {
        label
        for number in image_indices
        for label in ledger.image_labels(number, shown_rounds[-1]).label.tolist()
    }
    figure = _compose_figure(
        rows,
        titles,
        [ledger.keys[number] for number in image_indices],
        _legend_entries(classes, shown_labels),
    )
    write_atomically(out, lambda file: figure.save(file, format="PNG"))
    return out


def select_image_keys(
    ledger: LedgerLike, image_keys: Sequence[str] | None = None, n_images: int = 4
) -> list[str]:
    """Return the keys of the images to show.

    Args:
        ledger: ledger of a segmentation run.
        image_keys: keys; default: evenly spaced among the images with labels.
        n_images: number of images if ``image_keys`` is None.

    Raises:
        UserError: there are no labelled pixels, or a key is unknown.
    """
    if ledger.sizes is None:
        raise UserError(
            "this run labelled whole images, so there are no pixels to show; use `ducats labels RUN`"
        )
    if not ledger.n_rounds or not bool(ledger.labels_per_image().any()):
        raise UserError("this run has no labels yet, resume it until its first round is answered")
    if image_keys is not None:
        unknown = [key for key in image_keys if key not in set(ledger.keys)]
        if unknown or not image_keys:
            problem = f"no image {unknown[0]!r}" if unknown else "no image given"
            raise UserError(f"{problem}; give keys of images, such as {ledger.keys[0]!r}")
        return list(image_keys)
    if n_images < 1:
        raise UserError(f"cannot show {n_images} images; give one or more")
    labelled_images = ledger.labels_per_image().nonzero().squeeze(1).tolist()
    n_shown = min(n_images, len(labelled_images))
    return [
        ledger.keys[labelled_images[int((index + 0.5) * len(labelled_images) / n_shown)]]
        for index in range(n_shown)
    ]


def load_images(config: Config, keys: Sequence[str]) -> Images:
    """Load the images with these keys; the whole pool if the data set does not consist of files.

    Args:
        config: config of the run.
        keys: keys in the run's ledger; may be a subset of the pool.
    """
    reader = resolve_dataset(config.data.name).load
    if not isinstance(reader, SegmentationReader):
        return load_data(config).pool
    listing = reader.list_files(**config.data.params)
    files = dict(listing.pool_files.images)
    for key in keys:
        _check_in_data(key, files)
    return decode_images([(key, files[key]) for key in dict.fromkeys(keys)], listing.size)


def _image_index(images: Images, key: str) -> int:
    _check_in_data(key, images.keys)
    return images.keys.index(key)


def _check_in_data(key: str, available: Container[str]) -> None:
    if key not in available:
        raise UserError(f"the data has no image {key!r}, which this run labelled; use the data of the run")


def _draw_row(
    ledger: LedgerLike,
    image_index: int,
    display_image: Image.Image,
    size: tuple[int, int],
    rounds: Sequence[int],
    classes: Sequence[str],
) -> list[tuple[Image.Image, str]]:
    """Draw one image: a tile and a caption for each round, then the labels."""
    grid = _drawing_size(size)
    scaled = np.asarray(display_image.resize(grid[::-1], Image.Resampling.BOX), np.float32)
    scaled *= 255 / max(float(np.percentile(scaled, 99)), 1)  # brighten night images
    scaled = scaled.clip(0, 255)
    dark, pale = _DARK_BRIGHTNESS * scaled, _LIGHT_OPACITY * scaled + (1 - _LIGHT_OPACITY) * 255
    tiles = []
    for previous_round, round_number in pairwise([0, *rounds]):
        positions = ledger.image_labels(image_index, round_number).position.numpy()
        n_earlier = len(ledger.image_labels(image_index, previous_round).position) if previous_round else 0
        highlighted = dark.copy()
        highlighted[_to_cells(positions[:n_earlier], size, grid)] = EARLIER_PIXEL_COLOUR
        highlighted[_to_cells(positions[n_earlier:], size, grid)] = NEW_PIXEL_COLOUR
        share = len(positions) / (size[0] * size[1])
        tiles.append(
            (
                _to_tile(highlighted),
                f"+{len(positions) - n_earlier:,} = {len(positions):,} px, {100 * share:.2f}%",
            )
        )
    image_labels = ledger.image_labels(image_index, rounds[-1])
    labels = image_labels.label.numpy()
    colours = np.array([*class_colours(_all_class_names(classes, labels.tolist())), VOID_COLOUR])
    pale[_to_cells(image_labels.position.numpy(), size, grid)] = colours[np.where(labels < 0, -1, labels)]
    n_classes = len(np.unique(labels[labels >= 0]))
    return [*tiles, (_to_tile(pale), f"{n_classes} class{'' if n_classes == 1 else 'es'}")]


def _drawing_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of the drawing: the image size, scaled down if it is too wide."""
    height, width = size
    return size if width <= TILE_WIDTH else (max(1, round(height * TILE_WIDTH / width)), TILE_WIDTH)


def _to_cells(
    position: _IntArray, size: tuple[int, int], grid: tuple[int, int]
) -> tuple[_IntArray, _IntArray]:
    """Convert positions to rows and columns of the drawing; several pixels may share a cell."""
    y, x = np.divmod(position, size[1])
    return y * grid[0] // size[0], x * grid[1] // size[1]


def _to_tile(values: _IntArray) -> Image.Image:
    """Convert an array to an image; enlarge small ones by an integer factor to keep pixels sharp."""
    tile = Image.fromarray(values.round().astype(np.uint8))
    scale = max(1, TILE_WIDTH // tile.width)
    return tile.resize((tile.width * scale, tile.height * scale), Image.Resampling.NEAREST)


def _all_class_names(classes: Sequence[str], labels: Iterable[int]) -> list[str]:
    """Return the class names, with numbers for unnamed classes."""
    return [*classes, *(f"class {i}" for i in range(len(classes), max(labels, default=-1) + 1))]


def _legend_entries(classes: Sequence[str], shown_labels: set[int]) -> list[tuple[Colour, str]]:
    names = _all_class_names(classes, shown_labels)
    entries = [(NEW_PIXEL_COLOUR, "labelled in this round"), (EARLIER_PIXEL_COLOUR, "labelled before")]
    entries += [
        (colour, name)
        for label, (colour, name) in enumerate(zip(class_colours(names), names, strict=True))
        if label in shown_labels
    ]
    return [*entries, *([(VOID_COLOUR, "void")] if min(shown_labels, default=0) < 0 else [])]


def _compose_figure(
    rows: Sequence[Sequence[tuple[Image.Image, str]]],
    titles: Sequence[str],
    keys: Sequence[str],
    legend: Sequence[tuple[Colour, str]],
) -> Image.Image:
    """Compose the figure: titles, rows with their keys, and the legend below."""
    font = ImageFont.truetype(
        Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", FONT_SIZE
    )
    tile_width = max(max(tile.width, font.getlength(text)) for row in rows for tile, text in row)
    column_step = math.ceil(tile_width) + GAP_PIXELS
    width = GAP_PIXELS + column_step * len(titles)
    heights = [max(tile.height for tile, _ in row) + 2 * LINE_HEIGHT + GAP_PIXELS for row in rows]
    lines = _wrap_legend(legend, width - 2 * GAP_PIXELS, font)
    figure = Image.new(
        "RGB",
        (width, LINE_HEIGHT + GAP_PIXELS + sum(heights) + LINE_HEIGHT * len(lines) + 2 * GAP_PIXELS),
        BACKGROUND_COLOUR,
    )
    painter = ImageDraw.Draw(figure)
    for column, title in enumerate(titles):
        painter.text((GAP_PIXELS + column * column_step, GAP_PIXELS), title, _TEXT_COLOUR, font)
    top = LINE_HEIGHT + GAP_PIXELS
    for row, key, height in zip(rows, keys, heights, strict=True):
        painter.text(
            (GAP_PIXELS, top + GAP_PIXELS // 2),
            _fit_text(key, width - 2 * GAP_PIXELS, font),
            _MUTED_TEXT_COLOUR,
            font,
        )
        for column, (tile, text) in enumerate(row):
            figure.paste(tile, (GAP_PIXELS + column * column_step, top + LINE_HEIGHT))
            painter.text(
                (GAP_PIXELS + column * column_step, top + LINE_HEIGHT + tile.height + 2),
                text,
                _TEXT_COLOUR,
                font,
            )
        top += height
    for number, line in enumerate(lines):
        for left, colour, name in line:
            y = top + GAP_PIXELS + number * LINE_HEIGHT
            painter.rectangle(
                (GAP_PIXELS + left, y + 2, GAP_PIXELS + left + FONT_SIZE, y + 2 + FONT_SIZE),
                colour,
                _MUTED_TEXT_COLOUR,
            )
            painter.text((GAP_PIXELS + left + FONT_SIZE + 6, y), name, _TEXT_COLOUR, font)
    return figure


def _wrap_legend(
    legend: Sequence[tuple[Colour, str]], width: float, font: ImageFont.FreeTypeFont
) -> list[list[tuple[float, Colour, str]]]:
    """Break the legend into lines of ``(left, colour, name)`` that fit the width."""
    lines: list[list[tuple[float, Colour, str]]] = [[]]
    left = 0.0
    for colour, name in legend:
        text = _fit_text(name, width - FONT_SIZE - 6, font)
        needed = FONT_SIZE + 6 + font.getlength(text)
        if lines[-1] and left + needed > width:
            lines.append([])
            left = 0.0
        lines[-1].append((left, colour, text))
        left += needed + 2 * GAP_PIXELS
    return lines


def _fit_text(text: str, width: float, font: ImageFont.FreeTypeFont) -> str:
    """Shorten text at its start to fit the width; the end of a path is more informative."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"…{text}") > width:
        text = text[1:]
    return f"…{text}"
