"""Small question rounds about images, pixels and areas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.question import consecutive_runs

CLASSES = ("cat", "dog", 'a & b <"c">')
HEIGHT, WIDTH = 40, 60  # grid of pixels and areas


def save_image(path: Path, height: int, width: int, seed: int) -> str:
    """Save an image of coloured squares and return its path."""
    rng = np.random.default_rng(seed)
    squares = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(squares.repeat(8, 0).repeat(8, 1)[:height, :width]).save(path)
    return str(path)


def image_store(folder: Path, count: int = 4, *, round_number: int = 1, **rules: Any) -> AnnotationStore:
    """Write questions about whole images with keys ``cam/R-0.png``, ... in round R."""
    round_folder = folder / f"round-{round_number:02d}"
    questions: list[Question] = []
    for index in range(count):
        key, thumbnail = f"cam/{round_number}-{index}.png", f"thumbnails/{index + 1:04d}.png"
        save_image(round_folder / thumbnail, 24, 32, 10 * round_number + index)
        file = save_image(folder.parent / "media" / "pool" / key, 48, 64, 10 * round_number + index)
        hints: dict[str, Any] = {"guess": CLASSES[index % 3], "probability": 0.5 + index / 100}
        hints |= {"u_dis": 0.1 * index, "u_data": 0.2}
        questions.append(Question(index + 1, key, key, thumbnail, file, **hints))
    QuestionRound.write(round_folder, RoundRules(round_number, CLASSES, **rules), questions)
    return AnnotationStore(folder)


def pixel_store(folder: Path, pixels_per_image: Sequence[Sequence[tuple[int, int]]]) -> AnnotationStore:
    """Write questions about single pixels (y, x) of images ``street-0``, ..."""
    return area_store(folder, [[[pixel] for pixel in pixels] for pixels in pixels_per_image], "pixel")


def area_store(
    folder: Path, areas_per_image: Sequence[Sequence[Sequence[tuple[int, int]]]], unit: str
) -> AnnotationStore:
    """Write questions about pixel areas of images ``street-0``, ..."""
    round_folder = folder / "round-01"
    questions: list[Question] = []
    for image, areas in enumerate(areas_per_image):
        key, overlay = f"street-{image}", f"overlays/street-{image}.png"
        save_image(round_folder / overlay, HEIGHT, WIDTH, image)
        file = save_image(folder.parent / "media" / "pool" / f"{key}.png", 2 * HEIGHT, 3 * WIDTH, image)
        for number, area in enumerate(areas, start=len(questions) + 1):
            y, x = area[len(area) // 2]
            runs = consecutive_runs([row * WIDTH + column for row, column in area])
            place = QuestionArea(y, x, HEIGHT, WIDTH, runs)
            guess = CLASSES[number % len(CLASSES)]
            questions.append(Question(number, f"{key}#{y},{x}", key, overlay, file, place, guess, 0.75))
    QuestionRound.write(round_folder, RoundRules(1, CLASSES, unit=unit), questions)
    return AnnotationStore(folder)
