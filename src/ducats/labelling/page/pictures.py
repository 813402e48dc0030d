"""Images of a run's questions, addressed by question and never by path, with a cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from PIL import Image

from ducats.annotation import Question, QuestionRound
from ducats.image_files import load_image
from ducats.labelling.page.drawing import draw, encoded, mask_of, window

LARGEST, CROP, TILE = 1600, 720, 224  # longer side in pixels
WIDE = 4 / 3  # aspect ratio of a crop
MEMORY = 64 << 20  # bytes of cached images

View = Literal["whole", "crop", "context", "tile"]
File = tuple[bytes, str]  # content, media type


class Pictures:
    """Render images of questions, with a least-recently-used cache."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, File] = OrderedDict()
        self._size = 0
        self._own = threading.Lock()

    def get(
        self,
        sheet: QuestionRound,
        question: Question,
        view: View,
        *,
        zoom: int = 0,
        together: tuple[Question, ...] = (),
    ) -> File | None:
        """Return an image of a question, or None if no source file is left.

        Args:
            sheet: the round of the question.
            question: the image or pixels to show.
            view: ``whole`` image or small ``tile``; for pixels also a ``crop``, or the whole image with the
                crop framed (``context``).
            zoom: zoom of the crop, see ``drawing.window``.
            together: further questions of the same image to outline.
        """
        if question.area is None and view in ("crop", "context"):
            view = "whole"
        numbers = tuple(one.number for one in together)
        return self._cached(
            (str(sheet.folder), question.number, view, zoom, numbers),
            lambda: _made(sheet, question, view, zoom, together),
        )

    def _cached(self, name: Hashable, make: Callable[[], File | None]) -> File | None:
        with self._own:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        made = make()
        if made is not None:
            with self._own:
                if name not in self._kept:
                    self._size += len(made[0])
                self._kept[name] = made
                while self._size > MEMORY:
                    self._size -= len(self._kept.popitem(last=False)[1][0])
        return made


def sources(sheet: QuestionRound, question: Question) -> list[Path]:
    """Return files that show a question's image, best first; relative paths stay in the round's folder."""
    home = sheet.folder.resolve()
    beside = [question.image_path.replace("overlays/", "images/", 1), question.image_path]
    inside = [path for name in beside if (path := (home / name).resolve()).is_relative_to(home)]
    return [Path(question.original_path), *inside] if question.original_path else inside


def is_gone(question: Question) -> bool:
    """Return whether the original image file has been removed since the question was written."""
    return bool(question.original_path) and not Path(question.original_path).is_file()


def _made(
    sheet: QuestionRound, question: Question, view: View, zoom: int, together: tuple[Question, ...]
) -> File | None:
    image = _image(sheet, question)
    if image is None:
        return None
    if question.area is None or view == "whole":
        shown = image.copy()
        side = TILE if view == "tile" else LARGEST
        shown.thumbnail((side, side))
        return encoded(shown)
    places = [one.area for one in (question, *together) if one.area is not None]
    asked = mask_of(places)
    box = window(asked, image.size, zoom, 1.0 if view == "tile" else WIDE)
    if view == "context":
        whole = window(asked, image.size, -30)
        return encoded(draw(image, asked, whole, LARGEST // 2, frame=box))
    return encoded(draw(image, asked, box, TILE if view == "tile" else CROP))


def _image(sheet: QuestionRound, question: Question) -> Image.Image | None:
    for path in sources(sheet, question):
        try:
            # In segmentation, many consecutive questions share one image.
            return load_image(path) if question.area is None else _decoded(path, path.stat().st_mtime_ns)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return None


@lru_cache(maxsize=4)
def _decoded(path: Path, changed: int) -> Image.Image:  # noqa: ARG001 - part of the cache key
    return load_image(path)
