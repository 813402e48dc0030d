"""The pictures of a task: inside it, or where the server or a browser finds them."""

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image

from ducats.answers import Question, Sheet
from ducats.errors import UserError
from ducats.pictures import as_shown, shown_size

INLINE, LOCAL_FILES = "inline", "local-files"
LARGEST_PNG = 200_000  # bytes; beyond, JPEG


class Shown(NamedTuple):
    """How a picture is named in a task, and its size there."""

    address: str
    height: int
    width: int


Show = Callable[[Sheet, Question], Shown]


def chosen(pictures: str, document_root: Path | None, most_side: int) -> Show:
    """The way to show pictures.

    Args:
        pictures: inline, local-files, or a URL that keys are put behind.
        document_root: for local-files, the server's.
        most_side: for inline, the longest side of a picture that no brush is drawn on.
    """
    if most_side < 1:
        raise UserError(f"--most-side {most_side} has to be 1 or more pixels")
    if (pictures == LOCAL_FILES) != (document_root is not None):
        raise UserError("--pictures local-files and --document-root belong together: give both or none")
    if pictures == INLINE:
        return lambda sheet, question: _inline(sheet, question, most_side)
    if document_root is not None:
        root = document_root.resolve()
        return lambda _, question: _local(question, root)
    if pictures.startswith(("http://", "https://")):
        return lambda _, question: _sized(f"{pictures}{quote(question.key)}", question)
    raise UserError(
        f"--pictures {pictures!r} has to be inline, local-files, or begin with http:// or https://"
    )


def served_folder(sheet: Sheet, document_root: Path) -> str:
    """The folder below the document root that holds all pictures of a round; the root itself is refused."""
    root = document_root.resolve()
    folder = Path(os.path.commonpath([_below(question, root).parent for question in sheet.questions]))
    if folder == root:
        raise UserError(
            f"Label Studio serves folders below its document root, not {root} itself: start it with "
            f"{root.parent} as document root, and give that as --document-root"
        )
    return str(folder)


def _own(sheet: Sheet, question: Question) -> Image.Image:
    """The image's own file if it can be read, else the picture that was laid out."""
    for path in (Path(question.file) if question.file else None, sheet.folder / question.picture):
        try:
            if path is not None and path.is_file():
                return as_shown(path)
        except (OSError, ValueError, SyntaxError):
            continue
    raise UserError(
        f"the picture of {question.id!r} cannot be read: restore {sheet.folder / question.picture}"
    )


def _inline(sheet: Sheet, question: Question, most_side: int) -> Shown:
    image = _own(sheet, question)
    brushed = question.place is not None and sheet.terms.unit != "pixel"
    if brushed and question.place is not None:
        image = image.resize((question.place.width, question.place.height))  # a mask must fit to the pixel
    else:
        image.thumbnail((most_side, most_side))
    kind = "png"
    data = _saved(image, "PNG")
    if len(data) > LARGEST_PNG:
        kind, data = "jpeg", _saved(image, "JPEG", quality=90)
    return Shown(
        f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}", image.height, image.width
    )


def _saved(image: Image.Image, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def _below(question: Question, root: Path) -> Path:
    path = Path(question.file).resolve() if question.file else None
    if path is None or not path.is_relative_to(root):
        raise UserError(
            f"{question.file or question.key} is not below --document-root {root}: use --pictures inline"
        )
    return path


def _local(question: Question, root: Path) -> Shown:
    place = _below(question, root).relative_to(root).as_posix()
    return _sized(f"/data/local-files/?d={quote(place)}", question)


def _sized(address: str, question: Question) -> Shown:
    """An address with the size of the file there, or of the grid if the file is not here."""
    try:
        return Shown(address, *shown_size(Path(question.file)))
    except OSError:
        grid = question.place
        return Shown(address, grid.height, grid.width) if grid is not None else Shown(address, 1, 1)
