"""Images of a run's questions, addressed by question and never by path, with a cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from PIL import Image

from ducats.annotation import Question, QuestionRound
from ducats.annotation.page.crop import crop_box, draw_crop, encode_image
from ducats.annotation.question import area_mask
from ducats.runfolder.question_names import IMAGES, OVERLAYS
from ducats.utils.image_files import load_image

MAX_IMAGE_SIDE, CROP_SIDE, TILE_SIDE = 1600, 720, 224  # longer side in pixels
CROP_ASPECT_RATIO = 4 / 3  # width / height
MAX_CACHE_BYTES = 64 << 20

ImageView = Literal["whole", "crop", "context", "tile"]
EncodedImage = tuple[bytes, str]  # content, media type


class QuestionImages:
    """Render images of questions, with a least-recently-used cache."""

    def __init__(self) -> None:
        self._cache: OrderedDict[Hashable, EncodedImage] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def render(
        self,
        question_round: QuestionRound,
        question: Question,
        view: ImageView,
        *,
        zoom: int = 0,
        together: tuple[Question, ...] = (),
    ) -> EncodedImage | None:
        """Return an image of a question, or None if no source file is left.

        Args:
            view: ``whole`` image or small ``tile``; for pixels also a ``crop``, or the whole image with the
                crop framed (``context``).
            zoom: zoom of the crop, see ``crop.crop_box``.
            together: further questions of the same image to outline.
        """
        if question.area is None and view in ("crop", "context"):
            view = "whole"
        numbers = tuple(one.number for one in together)
        return self._cached(
            (str(question_round.folder), question.number, view, zoom, numbers),
            lambda: _render(question_round, question, view, zoom, together),
        )

    def _cached(self, name: Hashable, make: Callable[[], EncodedImage | None]) -> EncodedImage | None:
        with self._lock:
            if name in self._cache:
                self._cache.move_to_end(name)
                return self._cache[name]
        image = make()
        if image is not None:
            with self._lock:
                if name not in self._cache:
                    self._cached_bytes += len(image[0])
                self._cache[name] = image
                while self._cached_bytes > MAX_CACHE_BYTES:
                    self._cached_bytes -= len(self._cache.popitem(last=False)[1][0])
        return image


def image_files(question_round: QuestionRound, question: Question) -> list[Path]:
    """Return files that show a question's image, best first; relative paths stay in the round's folder."""
    round_folder = question_round.folder.resolve()
    names = [question.image_path.replace(f"{OVERLAYS}/", f"{IMAGES}/", 1), question.image_path]
    inside = [
        path for name in names if (path := (round_folder / name).resolve()).is_relative_to(round_folder)
    ]
    return [Path(question.original_path), *inside] if question.original_path else inside


def is_original_missing(question: Question) -> bool:
    """Return whether the original image file has been removed since the question was written."""
    return bool(question.original_path) and not Path(question.original_path).is_file()


def _render(
    question_round: QuestionRound,
    question: Question,
    view: ImageView,
    zoom: int,
    together: tuple[Question, ...],
) -> EncodedImage | None:
    image = _load_image(question_round, question)
    if image is None:
        return None
    if question.area is None or view == "whole":
        thumbnail = image.copy()
        side = TILE_SIDE if view == "tile" else MAX_IMAGE_SIDE
        thumbnail.thumbnail((side, side))
        return encode_image(thumbnail)
    mask = area_mask(*(one.area for one in (question, *together) if one.area is not None))
    box = crop_box(mask, image.size, zoom, 1.0 if view == "tile" else CROP_ASPECT_RATIO)
    if view == "context":
        whole = crop_box(mask, image.size, -30)
        return encode_image(draw_crop(image, mask, whole, MAX_IMAGE_SIDE // 2, frame=box))
    return encode_image(draw_crop(image, mask, box, TILE_SIDE if view == "tile" else CROP_SIDE))


def _load_image(question_round: QuestionRound, question: Question) -> Image.Image | None:
    for path in image_files(question_round, question):
        try:
            # In segmentation, many consecutive questions share one image.
            return load_image(path) if question.area is None else _load_cached(path, path.stat().st_mtime_ns)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
    return None


@lru_cache(maxsize=4)
def _load_cached(path: Path, mtime_ns: int) -> Image.Image:  # noqa: ARG001 - part of the cache key
    return load_image(path)
