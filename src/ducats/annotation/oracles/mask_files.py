"""Pixel labels through files: masks of the requested pixels are written, label PNGs are read.

An answer is a single-channel PNG of the mask's size with class ids where the mask is white.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ducats.annotation import Question
from ducats.annotation.answer import new_class_name, parse_word
from ducats.annotation.oracles.display_image import image_digest, load_display_image
from ducats.annotation.oracles.question_files import HINT_COLUMNS, hint_cells
from ducats.data.domain import UNLABELLED, VOID, Images
from ducats.data.segmentation.label_files import read_channels
from ducats.ledger import Request
from ducats.runfolder.question_names import (
    ANSWER_MAPS,
    CLASSES,
    IMAGES,
    MASKS,
    OVERLAYS,
    PIXELS_TABLE,
    QUESTIONS_TABLE,
    README,
    SHARED_MAPS,
)
from ducats.utils import files
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.image_files import IMAGE_FILE_SUFFIXES, displayed_size

DIM_FACTOR = 0.35  # brightness of pixels that are not requested
HIGHLIGHT_COLOUR = (255, 255, 0)

README_TEMPLATE = f"""\
Label every highlighted pixel of the images in {OVERLAYS}/ (white in {MASKS}/). {QUESTIONS_TABLE} lists the \
files.
For each image, save a single-channel PNG of the mask's size in {ANSWER_MAPS}/, with ids from {CLASSES} at \
these pixels. {{void}} means that no class applies, {{unanswered}} that a pixel is not answered yet. To add \
a class, add a line with the next id to {CLASSES}. All other pixels are ignored, so a complete label map \
from any annotation tool works.
If there is a {PIXELS_TABLE}, you can also label each of its rows with one class: copy it to answers.csv and \
fill in the column `label`. Both ways can be mixed.
When everything is labelled, run the same command again.
"""


CODE_NAMES = ("not answered yet", "void")  # of the codes that are not classes


class LabelCodes:
    """Pixel values in label PNGs."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.void = 255 if n_classes <= 254 else 65535  # the latter needs 16-bit PNGs
        self.unanswered = self.void - 1

    def as_text(self, names: Sequence[str]) -> str:
        """Return the contents of classes.txt."""
        entries = [*enumerate(names), *zip((self.unanswered, self.void), CODE_NAMES, strict=True)]
        return "".join(f"{code} {name}\n" for code, name in entries)


class LabelPngs:
    """Labels read from the label PNGs of a round; those shared by other runs count where its own have none.

    Args:
        names: file name of each image's label PNG.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled.

    Raises:
        UserError: A file is not a valid label PNG.
    """

    def __init__(
        self, folder: Path, request: Request, names: Sequence[str], sizes: Tensor, n_classes: int
    ) -> None:
        self.folder, self.request, self.names, self.sizes = folder, request, names, sizes
        self.codes = LabelCodes(n_classes)
        # In the request's order; UNLABELLED if there is no answer.
        self.labels = torch.full(
            (len(request),), UNLABELLED, dtype=torch.int8 if n_classes <= 127 else torch.int16
        )
        self._read(ANSWER_MAPS)
        self.own_labels = self.labels.clone()
        self._read(SHARED_MAPS)

    def _read(self, subfolder: str) -> None:
        """Read the label PNGs of a subfolder into the labels that are still missing."""
        for image, position, index in self.request.by_image():
            path, size = self.folder / subfolder / self.names[image], self.sizes[image].tolist()
            if path.exists():
                new = read_labels_at(path, position, size, self.codes, self.folder / CLASSES)
                known = self.labels[index]
                self.labels[index] = torch.where(known == UNLABELLED, new.to(self.labels.dtype), known)

    def path(self, image: int) -> Path:
        """Return the path of an image's label PNG."""
        return self.folder / ANSWER_MAPS / self.names[image]

    def describe_location(self, index: int) -> str:
        """Describe a location: label PNG and pixel."""
        image = int(self.request.image[index])
        y, x = divmod(int(self.request.position[index]), int(self.sizes[image, 1]))
        return f"{self.path(image)} at x={x}, y={y}"

    def require_complete(self, next_steps: str, details: str = "") -> Tensor:
        """Return the labels; raise ``AwaitingLabels`` with details and next steps if some are missing."""
        n_requested, n_missing, n_incomplete, first = 0, 0, 0, ""
        for image, _, index in self.request.by_image():
            n_requested += 1
            n_open = int((self.labels[index] == UNLABELLED).sum())
            if n_open:
                n_missing, n_incomplete = n_missing + n_open, n_incomplete + 1
                exists = self.path(image).exists()
                problem = f"still has {self.codes.unanswered} at {n_open} of them" if exists else "is missing"
                first = first or f"{self.path(image)} {problem}"
        if n_missing:
            raise AwaitingLabels(
                f"round {self.request.round} waits for {n_missing} of {len(self.request)} pixels in "
                f"{n_incomplete} of {n_requested} images; first: {first}{details}. {next_steps}"
            )
        return self.labels


def read_labels_at(
    path: Path, position: Tensor, size: Sequence[int], codes: LabelCodes, class_list: Path
) -> Tensor:
    """Return the labels at some positions of a label PNG, int64; UNLABELLED where it is not answered yet.

    Args:
        size: height and width that it must have.
        class_list: file with the ids, named in messages.
    """
    values = read_label_png(path, size[1], size[0])[position]
    invalid = (values < 0) | (
        (values >= codes.n_classes) & (values != codes.void) & (values != codes.unanswered)
    )
    if bool(invalid.any()):
        y, x = divmod(int(position[invalid][0]), size[1])
        raise UserError(
            f"{path} has the value {int(values[invalid][0])} at x={x}, y={y}, which is not a class; use the "
            f"ids in {class_list}"
        )
    values[values == codes.unanswered] = UNLABELLED
    values[values == codes.void] = VOID
    return values


def png_names(keys: Sequence[str]) -> list[str]:
    """Return a PNG name for each key, unique on every file system; keys may contain sub-folders.

    >>> png_names(["a/x.jpg", "a/x.png", "../y"])
    ['a/x.jpg.png', 'a/x.png.png', '__/y.png']
    """
    stems = [_safe_relative_path(key) for key in keys]
    short_stems = [
        stem.removesuffix(suffix) if (suffix := Path(stem).suffix).lower() in IMAGE_FILE_SUFFIXES else stem
        for stem in stems
    ]
    count = Counter(name.lower() for name in short_stems)
    names: dict[str, str] = {}  # lower case -> name
    for number, (short_stem, stem) in enumerate(zip(short_stems, stems, strict=True)):
        options = [short_stem] if count[short_stem.lower()] == 1 else []
        options += [stem, f"{stem}.{number}", f"{stem}.{number}.{len(keys)}"]
        name = next(f"{option}.png" for option in options if f"{option}.png".lower() not in names)
        names[name.lower()] = name
    return list(names.values())


def _safe_relative_path(key: str) -> str:
    """Turn a key into a relative path without parent references."""
    parts = [part.translate(dict.fromkeys(map(ord, '<>:"\\|?*'), "_")) for part in key.split("/")]
    return "/".join("__" if part == ".." else part for part in parts if part not in ("", ".")) or "_"


MASK_TABLE_COLUMNS = ("key", "pixels", "mask", "overlay", "answer", "file", "digest")
PIXEL_CSV_COLUMNS = ("number", "id", "label", "key", "y", "x", "pixels", "overlay", *HINT_COLUMNS)


def pixel_csv_row(question: Question) -> list[Any]:
    """Return the row of a question in ``pixels.csv``."""
    assert question.area is not None
    area, pixels = question.area, sum(length for _, length in question.area.runs)
    cells = [question.key, area.y, area.x, pixels, question.image_path, *hint_cells(question)]
    return [question.number, question.id, "", *cells]


def write_masks(
    folder: Path, request: Request, pool: Images, sizes: Tensor, names: Sequence[str]
) -> list[list[Any]]:
    """Write masks and overlays; return the rows of their table."""
    rows: list[list[Any]] = []
    for image, position, _ in request.by_image():
        height, width = sizes[image].tolist()
        mask = np.zeros(height * width, np.uint8)
        mask[position.numpy()] = 255
        mask = mask.reshape(height, width)
        name = names[image]
        file = str(pool.files[image]) if pool.files is not None else ""
        write_mask(folder, name, mask, load_display_image(pool, image), has_file=bool(file))
        paths = [f"{folder_name}/{name}" for folder_name in (MASKS, OVERLAYS, ANSWER_MAPS)]
        rows.append([pool.keys[image], len(position), *paths, file, image_digest(pool, image)])
    return rows


def write_mask(
    folder: Path, name: str, mask: np.typing.NDArray[np.uint8], image: Image.Image, *, has_file: bool
) -> None:
    """Write the mask of an image and its overlay."""
    image_rgb = image.resize((mask.shape[1], mask.shape[0]))
    files.write_atomically(folder / MASKS / name, partial(Image.fromarray(mask).save, format="PNG"))
    if not has_file:  # overlays hide the requested pixels, and there is no other file
        files.write_atomically(folder / IMAGES / name, partial(image_rgb.save, format="PNG"))
    overlay = _overlay(image_rgb, mask > 0)
    files.write_atomically(folder / OVERLAYS / name, partial(overlay.save, format="PNG"))


def write_mask_table(folder: Path, classes: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write class ids, instructions and the table of the masks, with one row per image."""
    codes = LabelCodes(len(classes))
    files.write_text_atomically(folder / CLASSES, codes.as_text(classes))
    files.write_text_atomically(
        folder / README, README_TEMPLATE.format(void=codes.void, unanswered=codes.unanswered)
    )
    # Written last: its presence marks the round as complete.
    files.write_csv_atomically(folder / QUESTIONS_TABLE, MASK_TABLE_COLUMNS, rows)


def read_added_classes(folder: Path, classes: Sequence[str]) -> list[str]:
    """Return the names that annotators added to the class ids of a round.

    Args:
        classes: those that were written, in the order of their ids.

    Raises:
        UserError: an added line does not have the next id, or its name cannot be a class.
    """
    path, codes, found = folder / CLASSES, LabelCodes(len(classes)), list[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        code, _, name = line.strip().partition(" ")
        if not code.isdigit() or int(code) < len(classes) or int(code) in (codes.unanswered, codes.void):
            continue
        expected = len(classes) + len(found)
        kind, name = parse_word(name, (*classes, *found))
        if int(code) != expected or kind != "new":
            raise UserError(
                f"{path} has the line {line.strip()!r}; an added class needs the next id, {expected}, and a "
                "new name"
            )
        found.append(new_class_name(name))
    return found


def _overlay(image: Image.Image, requested: np.typing.NDArray[np.bool_]) -> Image.Image:
    """Dim the image and highlight the requested pixels; no change if all pixels are requested."""
    if requested.all():
        return image
    colours = np.array(image, np.float32) * DIM_FACTOR
    colours[requested] = (np.array(image, np.float32)[requested] + HIGHLIGHT_COLOUR) / 2
    return Image.fromarray(colours.astype(np.uint8))


def read_label_png(path: Path, width: int, height: int) -> Tensor:
    """Return the ids in a label PNG, flattened, int64."""
    try:
        size = displayed_size(path)  # before decoding a file that may be huge
        values = read_channels(path) if size == (height, width) else None
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not a readable image ({error}); save it as PNG") from None
    if values is None:
        raise UserError(
            f"{path} is {size[1]} x {size[0]}, but its mask is {width} x {height}; save it in that size, "
            "without interpolation"
        )
    if values.ndim == 3:
        raise UserError(f"{path} is a colour image; save a single-channel PNG with the ids in {CLASSES}")
    return torch.from_numpy(values.astype(np.int64)).flatten()
