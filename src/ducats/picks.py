"""A picture of what was bought: a row per image, a column per round, the bought pixels lit."""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ducats.assemble import load_data
from ducats.config import Config
from ducats.data import DATASETS
from ducats.data.decode import decode
from ducats.data.maps import Reader
from ducats.domain import Images
from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.oracles.picture import picture
from ducats.palette import Colour, palette

Array = np.ndarray[Any, Any]

TILE = 360  # width of a picture: six rounds of it still fit on a screen, and a lone pixel is seen
GAP = 8
TEXT = 15  # height of letters
LINE = TEXT + 9
EARLIER: Colour = (76, 201, 240)
NEW: Colour = (255, 210, 0)
PAPER: Colour = (255, 255, 255)
INK: Colour = (27, 30, 36)
SOFT: Colour = (90, 98, 112)
DIMMED = 0.38  # of an image's brightness, so that what is lit stands out
PALE = 0.3  # of an image left on white paper: dark colours of classes stand out there
VOID_COLOUR: Colour = (57, 255, 20)


class Bought(Protocol):
    """An image's bought labels, in the order of buying."""

    @property
    def position(self) -> Tensor:
        """``y * width + x`` of each."""

    @property
    def label(self) -> Tensor:
        """The class of each, or VOID."""


class Book(Protocol):
    """What a picture needs of a ledger."""

    @property
    def keys(self) -> Sequence[str]:
        """The pool's names."""

    @property
    def sizes(self) -> Tensor | None:
        """Height and width of each image, in which positions count; None where whole images were bought."""

    @property
    def rounds(self) -> int:
        """How many rounds were bought."""

    def counts(self, rounds: int | None = None) -> Tensor:
        """Labels spent on each image."""

    def of(self, image: int, rounds: int | None = None) -> Bought:
        """An image's labels in the first so many rounds."""


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
    """Write a PNG of the pixels bought so far: those of each round in yellow, earlier ones in blue.

    The last column shows the labels that were bought, in the colours of their classes.

    Args:
        ledger: of a run that bought pixels.
        images: its pool, or those of it that are shown.
        out: the file.
        classes: their names, for colours and legend.
        rounds: one column each, by default all; what was bought between two of them counts as new.
        chosen: keys of the images; by default some, evenly spaced among those with labels.
        count: how many, if none are chosen.
    """
    places = {key: place for place, key in enumerate(ledger.keys)}
    numbers = [places[key] for key in choose(ledger, chosen, count)]
    sizes = ledger.sizes
    assert sizes is not None
    wanted = sorted(set(range(1, ledger.rounds + 1) if rounds is None else rounds))
    if not wanted or wanted[0] < 1 or wanted[-1] > ledger.rounds:
        raise UserError(f"rounds {wanted} cannot be shown: this run has rounds 1 to {ledger.rounds}")
    rows = []
    for number in numbers:
        height, width = (int(side) for side in sizes[number])
        shown = picture(images, _place(images, ledger.keys[number]))
        rows.append(_row(ledger, number, shown, (height, width), wanted, classes))
    titles = [*(f"round {number}" for number in wanted), "labels"]
    occurring = {label for number in numbers for label in ledger.of(number, wanted[-1]).label.tolist()}
    sheet = _sheet(rows, titles, [ledger.keys[number] for number in numbers], _legend(classes, occurring))
    write_atomically(out, lambda file: sheet.save(file, format="PNG"))
    return out


def choose(ledger: Book, chosen: Sequence[str] | None = None, count: int = 4) -> list[str]:
    """Keys of the images to show, if there is anything to show of them.

    Args:
        ledger: of a run that bought pixels.
        chosen: keys; by default some, evenly spaced among the images with labels.
        count: how many, if none are chosen.
    """
    if ledger.sizes is None:
        raise UserError(
            "this run bought whole images, so there are no pixels to show: see `ducats labels RUN`"
        )
    if not ledger.rounds or not bool(ledger.counts().any()):
        raise UserError(
            "nothing was bought yet, so there is nothing to show: run it until its first question is answered"
        )
    if chosen is not None:
        unknown = [key for key in chosen if key not in set(ledger.keys)]
        if unknown or not chosen:
            what = f"no image {unknown[0]!r}" if unknown else "no image was named"
            raise UserError(f"{what}: name images by their keys, such as {ledger.keys[0]!r}")
        return list(chosen)
    if count < 1:
        raise UserError(f"{count} images cannot be shown: ask for one or more")
    bought = ledger.counts().nonzero().squeeze(1).tolist()
    many = min(count, len(bought))
    return [ledger.keys[bought[int((place + 0.5) * len(bought) / many)]] for place in range(many)]


def images_of(config: Config, keys: Sequence[str]) -> Images:
    """The images with these keys; of data that are no files, the whole pool.

    Args:
        config: of the run that bought from them.
        keys: as they are in its ledger; of a pool of which a share was held out, some.
    """
    reader = DATASETS.get(config.data.name)
    if not isinstance(reader, Reader):
        return load_data(config).pool
    listing = reader.listing(**config.data.knobs)
    files = dict(listing.pool.images)
    for key in keys:
        _check_there(key, files)
    return decode([(key, files[key]) for key in dict.fromkeys(keys)], listing.size)


def _place(images: Images, key: str) -> int:
    _check_there(key, images.keys)
    return images.keys.index(key)


def _check_there(key: str, there: Container[str]) -> None:
    if key not in there:
        raise UserError(f"the data has no image {key!r}, which this run bought from: use the run's own data")


def _row(
    ledger: Book,
    number: int,
    shown: Image.Image,
    size: tuple[int, int],
    rounds: Sequence[int],
    classes: Sequence[str],
) -> list[tuple[Image.Image, str]]:
    """One image: a picture and a line of text for each round, then the labels."""
    grid = _grid(size)
    small = np.asarray(shown.resize(grid[::-1], Image.Resampling.BOX), np.float32)
    small *= 255 / max(float(np.percentile(small, 99)), 1)  # a night is to be seen, too
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
    colours = np.array([*palette(_names(classes, labels.tolist())), VOID_COLOUR])
    pale[_cells(bought.position.numpy(), size, grid)] = colours[np.where(labels < 0, -1, labels)]
    known = len(np.unique(labels[labels >= 0]))
    return [*cells, (_image(pale), f"{known} class{'' if known == 1 else 'es'}")]


def _grid(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width in which an image is drawn: its own, or fewer if it is too wide."""
    height, width = size
    return size if width <= TILE else (max(1, round(height * TILE / width)), TILE)


def _cells(position: Array, size: tuple[int, int], grid: tuple[int, int]) -> tuple[Array, Array]:
    """Rows and columns of the drawing in which positions lie; one of several pixels in a cell lights it."""
    y, x = np.divmod(position, size[1])
    return y * grid[0] // size[0], x * grid[1] // size[1]


def _image(values: Array) -> Image.Image:
    """The drawing; a small image is enlarged by a whole number, so that its pixels stay pixels."""
    drawn = Image.fromarray(values.round().astype(np.uint8))
    times = max(1, TILE // drawn.width)
    return drawn.resize((drawn.width * times, drawn.height * times), Image.Resampling.NEAREST)


def _names(classes: Sequence[str], labels: Iterable[int]) -> list[str]:
    """The classes' names, and numbers for those that have none."""
    return [*classes, *(f"class {place}" for place in range(len(classes), max(labels, default=-1) + 1))]


def _legend(classes: Sequence[str], occurring: set[int]) -> list[tuple[Colour, str]]:
    names = _names(classes, occurring)
    entries = [(NEW, "bought in this round"), (EARLIER, "bought before")]
    entries += [
        (colour, name)
        for place, (colour, name) in enumerate(zip(palette(names), names, strict=True))
        if place in occurring
    ]
    return [*entries, *([(VOID_COLOUR, "void")] if min(occurring, default=0) < 0 else [])]


def _sheet(
    rows: Sequence[Sequence[tuple[Image.Image, str]]],
    titles: Sequence[str],
    keys: Sequence[str],
    legend: Sequence[tuple[Colour, str]],
) -> Image.Image:
    """Everything on one sheet of paper: titles, rows with their keys, and the legend below."""
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
    """The legend's entries with their places, as many to a line as fit."""
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
    """The text, or its end where it is too long: the end of a path says more."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"…{text}") > width:
        text = text[1:]
    return f"…{text}"
