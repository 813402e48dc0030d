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

from ducats.config import Config
from ducats.data import DATASETS
from ducats.data.decoding import decode_images
from ducats.data.segmentation import SegmentationReader
from ducats.domain import Images
from ducats.errors import UserError
from ducats.factory import load_data
from ducats.files import write_atomically
from ducats.oracles.display_image import load_display_image
from ducats.palette import Colour, class_colours

Array = np.ndarray[Any, Any]

TILE = 360  # width of an image: six rounds fit on a screen, and a single pixel is visible
GAP = 8
TEXT = 15  # font size
LINE = TEXT + 9
EARLIER: Colour = (76, 201, 240)
NEW: Colour = (255, 210, 0)
PAPER: Colour = (255, 255, 255)
INK: Colour = (27, 30, 36)
SOFT: Colour = (90, 98, 112)
DIMMED = 0.38  # brightness of the image below highlighted pixels
PALE = 0.3  # opacity of the image on white below class colours
VOID_COLOUR: Colour = (57, 255, 20)


class Bought(Protocol):
    """Labels of an image in the ledger's order."""

    @property
    def position(self) -> Tensor:
        """Pixel positions ``y * width + x``."""

    @property
    def label(self) -> Tensor:
        """Classes or VOID."""


class Book(Protocol):
    """The attributes of a ledger that the figure needs."""

    @property
    def keys(self) -> Sequence[str]:
        """Names of the pool's images."""

    @property
    def sizes(self) -> Tensor | None:
        """Labelling grid of each image, height and width; None if whole images were labelled."""

    @property
    def rounds(self) -> int:
        """Number of labelled rounds."""

    def counts(self, rounds: int | None = None) -> Tensor:
        """Number of labels of each image in the first ``rounds`` rounds; None: all."""

    def of(self, image: int, rounds: int | None = None) -> Bought:
        """Labels of an image in the first ``rounds`` rounds; None: all."""


def picks_figure(
    ledger: Book,
    images: Images,
    out: Path,
    *,
    classes: Sequence[str] = (),
    rounds: Sequence[int] | None = None,
    chosen: Sequence[str] | None = None,
    count: int = 4,
) -> Path:
    """Write a PNG of the labelled pixels: new ones of each round in yellow, earlier ones in blue.

    The last column shows all labels in the colours of their classes.

    Args:
        ledger: ledger of a segmentation run.
        images: the pool, or at least the images shown.
        classes: class names for colours and legend.
        rounds: rounds with a column, default all; labels since the previous column count as new.
        chosen: keys of the images; default: evenly spaced among those with labels.
        count: number of images if ``chosen`` is None.
    """
    places = {key: place for place, key in enumerate(ledger.keys)}
    numbers = [places[key] for key in choose(ledger, chosen, count)]
    sizes = ledger.sizes
    assert sizes is not None
    wanted = sorted(set(range(1, ledger.rounds + 1) if rounds is None else rounds))
    if not wanted or wanted[0] < 1 or wanted[-1] > ledger.rounds:
        raise UserError(f"cannot show rounds {wanted}; this run has rounds 1 to {ledger.rounds}")
    rows = []
    for number in numbers:
        height, width = (int(side) for side in sizes[number])
        shown = load_display_image(images, _place(images, ledger.keys[number]))
        rows.append(_row(ledger, number, shown, (height, width), wanted, classes))
    titles = [*(f"round {number}" for number in wanted), "labels"]
    occurring = {label for number in numbers for label in ledger.of(number, wanted[-1]).label.tolist()}
    sheet = _sheet(rows, titles, [ledger.keys[number] for number in numbers], _legend(classes, occurring))
    write_atomically(out, lambda file: sheet.save(file, format="PNG"))
    return out


def choose(ledger: Book, chosen: Sequence[str] | None = None, count: int = 4) -> list[str]:
    """Return the keys of the images to show.

    Args:
        ledger: ledger of a segmentation run.
        chosen: keys; default: evenly spaced among the images with labels.
        count: number of images if ``chosen`` is None.

    Raises:
        UserError: there are no labelled pixels, or a key is unknown.
    """
    if ledger.sizes is None:
        raise UserError(
            "this run labelled whole images, so there are no pixels to show; use `ducats labels RUN`"
        )
    if not ledger.rounds or not bool(ledger.counts().any()):
        raise UserError("this run has no labels yet, resume it until its first round is answered")
    if chosen is not None:
        unknown = [key for key in chosen if key not in set(ledger.keys)]
        if unknown or not chosen:
            what = f"no image {unknown[0]!r}" if unknown else "no image given"
            raise UserError(f"{what}; give keys of images, such as {ledger.keys[0]!r}")
        return list(chosen)
    if count < 1:
        raise UserError(f"cannot show {count} images; give one or more")
    bought = ledger.counts().nonzero().squeeze(1).tolist()
    many = min(count, len(bought))
    return [ledger.keys[bought[int((place + 0.5) * len(bought) / many)]] for place in range(many)]


def images_of(config: Config, keys: Sequence[str]) -> Images:
    """Load the images with these keys; the whole pool if the data set does not consist of files.

    Args:
        config: config of the run.
        keys: keys in the run's ledger; may be a subset of the pool.
    """
    reader = DATASETS.get(config.data.name)
    if not isinstance(reader, SegmentationReader):
        return load_data(config).pool
    listing = reader.list_files(**config.data.params)
    files = dict(listing.pool_files.images)
    for key in keys:
        _check_there(key, files)
    return decode_images([(key, files[key]) for key in dict.fromkeys(keys)], listing.size)


def _place(images: Images, key: str) -> int:
    _check_there(key, images.keys)
    return images.keys.index(key)


def _check_there(key: str, there: Container[str]) -> None:
    if key not in there:
        raise UserError(f"the data has no image {key!r}, which this run labelled; use the data of the run")


def _row(
    ledger: Book,
    number: int,
    shown: Image.Image,
    size: tuple[int, int],
    rounds: Sequence[int],
    classes: Sequence[str],
) -> list[tuple[Image.Image, str]]:
    """Draw one image: a tile and a caption for each round, then the labels."""
    grid = _grid(size)
    small = np.asarray(shown.resize(grid[::-1], Image.Resampling.BOX), np.float32)
    small *= 255 / max(float(np.percentile(small, 99)), 1)  # brighten night images
    small = small.clip(0, 255)
    dark, pale = DIMMED * small, PALE * small + (1 - PALE) * 255
    cells = []
    for before, now in pairwise([0, *rounds]):
        positions = ledger.of(number, now).position.numpy()
        old = len(ledger.of(number, before).position) if before else 0
        lit = dark.copy()
        lit[_cells(positions[:old], size, grid)] = EARLIER
        lit[_cells(positions[old:], size, grid)] = NEW
        share = len(positions) / (size[0] * size[1])
        cells.append((_image(lit), f"+{len(positions) - old:,} = {len(positions):,} px, {100 * share:.2f}%"))
    bought = ledger.of(number, rounds[-1])
    labels = bought.label.numpy()
    colours = np.array([*class_colours(_names(classes, labels.tolist())), VOID_COLOUR])
    pale[_cells(bought.position.numpy(), size, grid)] = colours[np.where(labels < 0, -1, labels)]
    known = len(np.unique(labels[labels >= 0]))
    return [*cells, (_image(pale), f"{known} class{'' if known == 1 else 'es'}")]


def _grid(size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of the drawing: the image size, scaled down if it is too wide."""
    height, width = size
    return size if width <= TILE else (max(1, round(height * TILE / width)), TILE)


def _cells(position: Array, size: tuple[int, int], grid: tuple[int, int]) -> tuple[Array, Array]:
    """Convert positions to rows and columns of the drawing; several pixels may share a cell."""
    y, x = np.divmod(position, size[1])
    return y * grid[0] // size[0], x * grid[1] // size[1]


def _image(values: Array) -> Image.Image:
    """Convert an array to an image; enlarge small ones by an integer factor to keep pixels sharp."""
    drawn = Image.fromarray(values.round().astype(np.uint8))
    times = max(1, TILE // drawn.width)
    return drawn.resize((drawn.width * times, drawn.height * times), Image.Resampling.NEAREST)


def _names(classes: Sequence[str], labels: Iterable[int]) -> list[str]:
    """Return the class names, with numbers for unnamed classes."""
    return [*classes, *(f"class {place}" for place in range(len(classes), max(labels, default=-1) + 1))]


def _legend(classes: Sequence[str], occurring: set[int]) -> list[tuple[Colour, str]]:
    names = _names(classes, occurring)
    entries = [(NEW, "labelled in this round"), (EARLIER, "labelled before")]
    entries += [
        (colour, name)
        for place, (colour, name) in enumerate(zip(class_colours(names), names, strict=True))
        if place in occurring
    ]
    return [*entries, *([(VOID_COLOUR, "void")] if min(occurring, default=0) < 0 else [])]


def _sheet(
    rows: Sequence[Sequence[tuple[Image.Image, str]]],
    titles: Sequence[str],
    keys: Sequence[str],
    legend: Sequence[tuple[Colour, str]],
) -> Image.Image:
    """Compose the figure: titles, rows with their keys, and the legend below."""
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", TEXT)
    wide = max(max(drawn.width, font.getlength(text)) for row in rows for drawn, text in row)
    step = math.ceil(wide) + GAP
    width = GAP + step * len(titles)
    heights = [max(drawn.height for drawn, _ in row) + 2 * LINE + GAP for row in rows]
    lines = _lines(legend, width - 2 * GAP, font)
    sheet = Image.new("RGB", (width, LINE + GAP + sum(heights) + LINE * len(lines) + 2 * GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for place, title in enumerate(titles):
        pen.text((GAP + place * step, GAP), title, INK, font)
    top = LINE + GAP
    for row, key, height in zip(rows, keys, heights, strict=True):
        pen.text((GAP, top + GAP // 2), _fitted(key, width - 2 * GAP, font), SOFT, font)
        for place, (drawn, text) in enumerate(row):
            sheet.paste(drawn, (GAP + place * step, top + LINE))
            pen.text((GAP + place * step, top + LINE + drawn.height + 2), text, INK, font)
        top += height
    for number, line in enumerate(lines):
        for left, colour, name in line:
            y = top + GAP + number * LINE
            pen.rectangle((GAP + left, y + 2, GAP + left + TEXT, y + 2 + TEXT), colour, SOFT)
            pen.text((GAP + left + TEXT + 6, y), name, INK, font)
    return sheet


def _lines(
    legend: Sequence[tuple[Colour, str]], width: float, font: ImageFont.FreeTypeFont
) -> list[list[tuple[float, Colour, str]]]:
    """Break the legend into lines of ``(left, colour, name)`` that fit the width."""
    lines: list[list[tuple[float, Colour, str]]] = [[]]
    left = 0.0
    for colour, name in legend:
        text = _fitted(name, width - TEXT - 6, font)
        needed = TEXT + 6 + font.getlength(text)
        if lines[-1] and left + needed > width:
            lines.append([])
            left = 0.0
        lines[-1].append((left, colour, text))
        left += needed + 2 * GAP
    return lines


def _fitted(text: str, width: float, font: ImageFont.FreeTypeFont) -> str:
    """Shorten text at its start to fit the width; the end of a path is more informative."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"…{text}") > width:
        text = text[1:]
    return f"…{text}"
