"""Task images: embedded in the task, read by the server, or loaded from a URL."""

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image

from ducats.annotation import Question, QuestionRound
from ducats.errors import UserError
from ducats.image_files import displayed_size, load_image

INLINE, LOCAL_FILES = "inline", "local-files"
LARGEST_PNG = 200_000  # bytes; larger images are sent as JPEG


class Shown(NamedTuple):
    """URL and size of a task image."""

    address: str
    height: int
    width: int


Show = Callable[[QuestionRound, Question], Shown]


def chosen(pictures: str, document_root: Path | None, most_side: int) -> Show:
    """Return the function that makes task images.

    Args:
        pictures: inline, local-files, or a URL prefix to which the image key is appended.
        document_root: the server's document root, for local-files only.
        most_side: maximum side of inline images. Images for brush masks keep the size of the grid.
    """
    if most_side < 1:
        raise UserError(f"--max-side must be at least 1 pixel, not {most_side}")
    if (pictures == LOCAL_FILES) != (document_root is not None):
        raise UserError("--images local-files and --document-root must be given together")
    if pictures == INLINE:
        return lambda sheet, question: _inline(sheet, question, most_side)
    if document_root is not None:
        root = document_root.resolve()
        return lambda _, question: _local(question, root)
    if pictures.startswith(("http://", "https://")):
        return lambda _, question: _sized(f"{pictures}{quote(question.key)}", question)
    raise UserError(f"--images must be inline, local-files or a URL (http:// or https://), not {pictures!r}")


def served_folder(sheet: QuestionRound, document_root: Path) -> str:
    """Return the folder with all images of a round, which must be below the document root."""
    root = document_root.resolve()
    folder = Path(os.path.commonpath([_below(question, root).parent for question in sheet.questions]))
    if folder == root:
        raise UserError(
            f"Label Studio cannot serve its document root {root} itself, only folders below it; start it "
            f"with {root.parent} as document root and give that as --document-root"
        )
    return str(folder)


def _own(sheet: QuestionRound, question: Question) -> Image.Image:
    """Load the original image if it can be read, else the copy in the questions folder."""
    for path in (
        Path(question.original_path) if question.original_path else None,
        sheet.folder / question.image_path,
    ):
        try:
            if path is not None and path.is_file():
                return load_image(path)
        except (OSError, ValueError, SyntaxError):
            continue
    raise UserError(
        f"the image of {question.id!r} cannot be read; restore {sheet.folder / question.image_path}"
    )


def _inline(sheet: QuestionRound, question: Question, most_side: int) -> Shown:
    image = _own(sheet, question)
    brushed = question.area is not None and sheet.rules.unit != "pixel"
    if brushed and question.area is not None:
        image = image.resize((question.area.width, question.area.height))  # a mask must match pixel by pixel
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
    path = Path(question.original_path).resolve() if question.original_path else None
    if path is None or not path.is_relative_to(root):
        raise UserError(
            f"{question.original_path or question.key} is not below --document-root {root}; use --images inline"
        )
    return path


def _local(question: Question, root: Path) -> Shown:
    place = _below(question, root).relative_to(root).as_posix()
    return _sized(f"/data/local-files/?d={quote(place)}", question)


def _sized(address: str, question: Question) -> Shown:
    """Return the URL with the size of the original image, or of the grid if the image is not available."""
    try:
        return Shown(address, *displayed_size(Path(question.original_path)))
    except OSError:
        grid = question.area
        return Shown(address, grid.height, grid.width) if grid is not None else Shown(address, 1, 1)
