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

from ducats import files
from ducats.answers import Question
from ducats.domain import UNLABELLED, VOID, Images
from ducats.errors import AwaitingLabels, UserError
from ducats.ledger import Request
from ducats.oracles.laying import THOUGHTS, thought_cells, write_table
from ducats.oracles.picture import picture

DARK = 0.35  # brightness of pixels that are not requested
LIT = (255, 255, 0)
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}

README = """\
Label every highlighted pixel of the images in overlays/ (white in masks/). questions.csv lists the files.
For each image, save a single-channel PNG of the mask's size in answers/, with ids from classes.txt at these \
pixels. {void} means that no class applies, {waiting} that a pixel is not answered yet. All other pixels are \
ignored, so a complete label map from any annotation tool works.
If there is a pixels.csv, you can also label each of its rows with one class: copy it to answers.csv and \
fill in the column `label`. Both ways can be mixed.
When everything is labelled, run the same command again.
"""


class Codes:
    """Pixel values in label PNGs.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.void = 255 if classes <= 254 else 65535  # the latter needs 16-bit PNGs
        self.waiting = self.void - 1

    def lines(self, names: Sequence[str]) -> str:
        """Return the contents of classes.txt."""
        known = [*enumerate(names), (self.waiting, "not answered yet"), (self.void, "void")]
        return "".join(f"{code} {name}\n" for code, name in known)


class Answers:
    """Labels read from the label PNGs of a round.

    Args:
        names: file name of each image's label PNG.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled.
        classes: number of classes.

    Raises:
        UserError: A file is not a valid label PNG.
    """

    def __init__(
        self, folder: Path, request: Request, names: Sequence[str], sizes: Tensor, classes: int
    ) -> None:
        self.folder, self.request, self.names, self.sizes = folder, request, names, sizes
        self.codes = Codes(classes)
        # In the request's order; UNLABELLED if there is no answer.
        self.labels = torch.full(
            (len(request),), UNLABELLED, dtype=torch.int8 if classes <= 127 else torch.int16
        )
        for image, position, place in request.by_image():
            height, width = sizes[image].tolist()
            found = _read(self.path(image), width, height)
            if found is not None:
                self.labels[place] = self._examined(image, position, found[position]).to(self.labels.dtype)

    def path(self, image: int) -> Path:
        """Return the path of an image's label PNG."""
        return self.folder / "answers" / self.names[image]

    def _examined(self, image: int, position: Tensor, given: Tensor) -> Tensor:
        codes, width = self.codes, int(self.sizes[image, 1])
        wrong = (given < 0) | ((given >= codes.classes) & (given != codes.void) & (given != codes.waiting))
        if bool(wrong.any()):
            y, x = divmod(int(position[wrong][0]), width)
            raise UserError(
                f"{self.path(image)} has the value {int(given[wrong][0])} at x={x}, y={y}, which is not a "
                f"class; use the ids in {self.folder / 'classes.txt'}"
            )
        given[given == codes.waiting] = UNLABELLED
        given[given == codes.void] = VOID
        return given

    def where(self, place: int) -> str:
        """Describe a location: label PNG and pixel."""
        image = int(self.request.image[place])
        y, x = divmod(int(self.request.position[place]), int(self.sizes[image, 1]))
        return f"{self.path(image)} at x={x}, y={y}"

    def whole(self, ways: str, more: str = "") -> Tensor:
        """Return the labels if none is missing.

        Args:
            ways: instructions that end the message.
            more: details about the missing labels.

        Raises:
            AwaitingLabels: Some labels are missing.
        """
        asked, missing, images, first = 0, 0, 0, ""
        for image, _, place in self.request.by_image():
            asked += 1
            waiting = int((self.labels[place] == UNLABELLED).sum())
            if waiting:
                missing, images = missing + waiting, images + 1
                there = self.path(image).exists()
                lack = f"still has {self.codes.waiting} at {waiting} of them" if there else "is missing"
                first = first or f"{self.path(image)} {lack}"
        if missing:
            raise AwaitingLabels(
                f"round {self.request.round} waits for {missing} of {len(self.request)} pixels in {images} "
                f"of {asked} images; first: {first}{more}. {ways}"
            )
        return self.labels


def file_names(keys: Sequence[str]) -> list[str]:
    """Return a PNG name for each key, unique on every file system; keys may contain sub-folders.

    >>> file_names(["a/x.jpg", "a/x.png", "../y"])
    ['a/x.jpg.png', 'a/x.png.png', '__/y.png']
    """
    stems = [_safe(key) for key in keys]
    short = [stem.removesuffix(Path(stem).suffix) if _is_picture(stem) else stem for stem in stems]
    count = Counter(name.lower() for name in short)
    names: dict[str, str] = {}  # lower case -> name
    for number, (brief, stem) in enumerate(zip(short, stems, strict=True)):
        options = [brief] if count[brief.lower()] == 1 else []
        options += [stem, f"{stem}.{number}", f"{stem}.{number}.{len(keys)}"]
        name = next(f"{option}.png" for option in options if f"{option}.png".lower() not in names)
        names[name.lower()] = name
    return list(names.values())


def _is_picture(name: str) -> bool:
    return Path(name).suffix.lower() in PICTURES


def _safe(key: str) -> str:
    """Turn a key into a relative path without parent references."""
    parts = [part.translate(dict.fromkeys(map(ord, '<>:"\\|?*'), "_")) for part in key.split("/")]
    return "/".join("__" if part == ".." else part for part in parts if part not in ("", ".")) or "_"


COLUMNS = ("number", "id", "label", "key", "y", "x", "pixels", "overlay", *THOUGHTS)


def row(question: Question) -> list[Any]:
    """Return the row of a question in ``pixels.csv``."""
    assert question.place is not None
    place, pixels = question.place, sum(length for _, length in question.place.runs)
    known = [question.key, place.y, place.x, pixels, question.picture, *thought_cells(question)]
    return [question.number, question.id, "", *known]


def ask(
    folder: Path,
    request: Request,
    pool: Images,
    classes: Sequence[str],
    sizes: Tensor,
    names: Sequence[str],
) -> None:
    """Write masks, overlays, class ids and instructions."""
    rows, codes = [], Codes(len(classes))
    for image, position, _ in request.by_image():
        height, width = sizes[image].tolist()
        mask = np.zeros(height * width, np.uint8)
        mask[position.numpy()] = 255
        mask = mask.reshape(height, width)
        name = names[image]
        files.write_atomically(folder / "masks" / name, partial(Image.fromarray(mask).save, format="PNG"))
        plain = picture(pool, image).resize((width, height))
        if pool.files is None:  # overlays hide the requested pixels, and there is no other file
            files.write_atomically(folder / "images" / name, partial(plain.save, format="PNG"))
        shown = _overlay(plain, mask > 0)
        files.write_atomically(folder / "overlays" / name, partial(shown.save, format="PNG"))
        file = pool.files[image] if pool.files is not None else ""
        rows.append(
            [pool.keys[image], len(position), f"masks/{name}", f"overlays/{name}", f"answers/{name}", file]
        )
    files.write_text_atomically(folder / "classes.txt", codes.lines(classes))
    files.write_text_atomically(folder / "README.txt", README.format(void=codes.void, waiting=codes.waiting))
    # Written last: its presence marks the round as complete.
    write_table(folder / "questions.csv", ["key", "pixels", "mask", "overlay", "answer", "file"], rows)


def _overlay(shown: Image.Image, asked: np.typing.NDArray[np.bool_]) -> Image.Image:
    """Dim the image and highlight the requested pixels; no change if all pixels are requested."""
    if asked.all():
        return shown
    colours = np.array(shown, np.float32) * DARK
    colours[asked] = (np.array(shown, np.float32)[asked] + LIT) / 2
    return Image.fromarray(colours.astype(np.uint8))


def _read(path: Path, width: int, height: int) -> Tensor | None:
    """Return the ids in a label PNG, flattened, int64; None if the file does not exist."""
    if not path.exists():
        return None
    try:
        with Image.open(path) as opened:
            size, mode, found = opened.size, opened.mode, np.array(opened)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not a readable image ({error}); save it as PNG") from None
    if mode not in ("1", "L", "P", "I", "I;16"):
        raise UserError(
            f"{path} is a colour image ({mode}); save a single-channel PNG with the ids in classes.txt"
        )
    if size != (width, height):
        raise UserError(
            f"{path} is {size[0]} x {size[1]}, but its mask is {width} x {height}; save it in that size, "
            "without interpolation"
        )
    return torch.from_numpy(found.astype(np.int64)).flatten()
