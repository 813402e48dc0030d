"""Task images: embedded in the task, read by the server, or loaded from a URL."""

import base64
import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from PIL import Image

from ducats.annotation import Question, QuestionRound
from ducats.utils.errors import UserError
from ducats.utils.image_files import displayed_size, load_image

INLINE, LOCAL_FILES = "inline", "local-files"
MAX_PNG_BYTES = 200_000  # larger images are sent as JPEG


class TaskImage(NamedTuple):
    """URL and size of a task image."""

    url: str
    height: int
    width: int


TaskImageFactory = Callable[[QuestionRound, Question], TaskImage]


def make_image_factory(images: str, document_root: Path | None, max_side: int) -> TaskImageFactory:
    """Return the function that makes task images.

    Args:
        images: inline, local-files, or a URL prefix to which the image key is appended.
        document_root: the server's document root, for local-files only.
        max_side: maximum side of inline images. Images for brush masks keep the size of the grid.
    """
    if max_side < 1:
        raise UserError(f"--max-side must be at least 1 pixel, not {max_side}")
    if (images == LOCAL_FILES) != (document_root is not None):
        raise UserError("--images local-files and --document-root must be given together")
    if images == INLINE:
        return lambda question_round, question: _inline_image(question_round, question, max_side)
    if document_root is not None:
        root = document_root.resolve()
        return lambda _, question: _local_file_image(question, root)
    if images.startswith(("http://", "https://")):
        return lambda _, question: _image_at_url(f"{images}{quote(question.key)}", question)
    raise UserError(f"--images must be inline, local-files or a URL (http:// or https://), not {images!r}")


def common_image_folder(question_round: QuestionRound, document_root: Path) -> str:
    """Return the folder with all images of a round, which must be below the document root."""
    root = document_root.resolve()
    folder = Path(
        os.path.commonpath([_path_below_root(question, root).parent for question in question_round.questions])
    )
    if folder == root:
        raise UserError(
            f"Label Studio cannot serve its document root {root} itself, only folders below it; start it "
            f"with {root.parent} as document root and give that as --document-root"
        )
    return str(folder)


def _load_image(question_round: QuestionRound, question: Question) -> Image.Image:
    """Load the original image if it can be read, else the copy in the questions folder."""
    copy = question_round.folder / question.image_path
    for path in (Path(question.original_path), copy):
        if path.is_file():  # not where the original has no path
            with suppress(OSError, ValueError, SyntaxError):
                return load_image(path)
    raise UserError(f"the image of {question.id!r} cannot be read; restore {copy}")


def _inline_image(question_round: QuestionRound, question: Question, max_side: int) -> TaskImage:
    image = _load_image(question_round, question)
    if question.area is not None and question_round.rules.unit != "pixel":
        image = image.resize((question.area.width, question.area.height))  # a mask must match pixel by pixel
    else:
        image.thumbnail((max_side, max_side))
    kind, file = "png", io.BytesIO()
    image.save(file, "PNG")
    if file.tell() > MAX_PNG_BYTES:
        kind, file = "jpeg", io.BytesIO()
        image.save(file, "JPEG", quality=90)
    content = base64.b64encode(file.getvalue()).decode("ascii")
    return TaskImage(f"data:image/{kind};base64,{content}", image.height, image.width)


def _path_below_root(question: Question, root: Path) -> Path:
    path = Path(question.original_path).resolve() if question.original_path else None
    if path is None or not path.is_relative_to(root):
        raise UserError(
            f"{question.original_path or question.key} is not below --document-root {root}; use "
            "--images inline"
        )
    return path


def _local_file_image(question: Question, root: Path) -> TaskImage:
    relative_path = _path_below_root(question, root).relative_to(root).as_posix()
    return _image_at_url(f"/data/local-files/?d={quote(relative_path)}", question)


def _image_at_url(url: str, question: Question) -> TaskImage:
    """Return the URL with the size of the original image, or of the grid if the image is not available."""
    try:
        return TaskImage(url, *displayed_size(Path(question.original_path)))
    except OSError:
        grid = question.area
        return TaskImage(url, grid.height, grid.width) if grid is not None else TaskImage(url, 1, 1)
