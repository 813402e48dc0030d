"""Small question rounds about images, pixels and areas."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.question import consecutive_runs

CLASSES = ("cat", "dog", 'a & b <"c">')


def save_image(path: Path, height: int, width: int, seed: int) -> str:
    """Save an image of coloured squares and return its path."""
    rng = np.random.default_rng(seed)
    rows, columns = -(-height // 8), -(-width // 8)
    squares = rng.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(squares.repeat(8, 0).repeat(8, 1)[:height, :width]).save(path)
    return str(path)


def image_store(
    folder: Path,
    count: int = 4,
    *,
    round_number: int = 1,
    rule: str = "first",
    min_annotators: int = 1,
    classes: Sequence[str] = CLASSES,
) -> AnnotationStore:
    """Write questions about whole images with keys ``cam/R-0.png``, ... in round R."""
    round_folder = folder / f"round-{round_number:02d}"
    questions: list[Question] = []
    for index in range(count):
        key = f"cam/{round_number}-{index}.png"
        thumbnail = f"thumbnails/{index + 1:04d}.png"
        save_image(round_folder / thumbnail, 24, 32, 10 * round_number + index)
        file = save_image(folder.parent / "media" / "pool" / key, 48, 64, 10 * round_number + index)
        questions.append(
            Question(
                index + 1,
                key,
                key,
                thumbnail,
                file,
                guess=classes[index % len(classes)],
                probability=0.5 + index / 100,
                u_dis=0.1 * index,
                u_data=0.2,
            )
        )
    QuestionRound.write(
        round_folder,
        RoundRules(round_number, tuple(classes), rule=rule, min_annotators=min_annotators),
        questions,
    )
    return AnnotationStore(folder)


def pixel_store(
    folder: Path, pixels_per_image: Sequence[Sequence[tuple[int, int]]], *, height: int = 40, width: int = 60
) -> AnnotationStore:
    """Write questions about single pixels (y, x) of images ``street-0``, ..."""
    areas = [[[pixel] for pixel in pixels] for pixels in pixels_per_image]
    return area_store(folder, areas, "pixel", height=height, width=width)


def area_store(
    folder: Path,
    areas_per_image: Sequence[Sequence[Sequence[tuple[int, int]]]],
    unit: str,
    *,
    height: int = 40,
    width: int = 60,
) -> AnnotationStore:
    """Write questions about pixel areas of images ``street-0``, ... in a grid of this size."""
    round_folder = folder / "round-01"
    questions: list[Question] = []
    for image, areas in enumerate(areas_per_image):
        key = f"street-{image}"
        overlay = f"overlays/{key}.png"
        save_image(round_folder / overlay, height, width, image)
        file = save_image(folder.parent / "media" / "pool" / f"{key}.png", 2 * height, 3 * width, image)
        for area in areas:
            y, x = area[len(area) // 2]
            runs = consecutive_runs([row * width + column for row, column in area])
            question_area = QuestionArea(y, x, height, width, runs)
            number = len(questions) + 1
            guess = CLASSES[number % len(CLASSES)]
            questions.append(
                Question(number, f"{key}#{y},{x}", key, overlay, file, question_area, guess, 0.75)
            )
    QuestionRound.write(round_folder, RoundRules(1, CLASSES, unit=unit), questions)
    return AnnotationStore(folder)
