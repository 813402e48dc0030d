"""Small question rounds for page tests: single-colour images, and pixels of a synthetic image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound, RoundRules
from ducats.annotation.question import consecutive_runs

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 70, 220)}
CLASSES = tuple(COLOURS)
HEIGHT, WIDTH, SCALE = 32, 64, 4  # grid height and width; image pixels per cell


def image_questions(
    run: Path,
    count: int = 6,
    number: int = 1,
    guesses: Sequence[str] = ("red", "green", "red"),
    probabilities: Sequence[float] = (0.62,),
    **rules: Any,
) -> AnnotationStore:
    """Write a round of single-colour images; every third of the default guesses is wrong."""
    store = AnnotationStore(run / "questions")
    round_folder = store.round_folder(number)
    (round_folder / "thumbnails").mkdir(parents=True)
    (run / "images").mkdir(exist_ok=True)
    questions = []
    hints: dict[str, Any] = {
        "u_dis": 0.3,
        "u_data": 0.6,
        "u_dis_quantile": 0.97,
        "u_data_quantile": 0.8,
    }
    for n in range(1, count + 1):
        file, thumbnail, key = run / f"images/{number}-{n}.png", f"thumbnails/{n:04d}.png", f"r{number}/{n}"
        image = Image.new("RGB", (160, 120), COLOURS[CLASSES[(n - 1) % 3]])
        ImageDraw.Draw(image).text((70, 50), str(n), "white")
        image.save(file)
        image.resize((64, 48)).save(round_folder / thumbnail)
        guess = guesses[(n - 1) % len(guesses)]
        probability = probabilities[(n - 1) % len(probabilities)]
        questions.append(
            Question(n, key, key, thumbnail, str(file), guess=guess, probability=probability, **hints)
        )
    settings = {
        "classes": CLASSES,
        "query": "duc",
        "query_summary": "Two-round selection by U_dis and U_data.",
        "explained_by": ("u_dis", "u_data"),
        **rules,
    }
    QuestionRound.write(round_folder, RoundRules(number, **settings), questions)
    return store


def street_image() -> Image.Image:
    """Return an image: left half red, right half blue, a green 4 x 4-cell square in the middle."""
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), COLOURS["red"])
    pen = ImageDraw.Draw(image)
    pen.rectangle([image.width // 2, 0, image.width, image.height], COLOURS["blue"])
    pen.rectangle([30 * SCALE, 14 * SCALE, 34 * SCALE - 1, 18 * SCALE - 1], COLOURS["green"])
    return image


def true_class(y: int, x: int) -> str:
    """Return the colour of ``street_image`` in a cell."""
    return "green" if 14 <= y < 18 and 30 <= x < 34 else "red" if x < WIDTH // 2 else "blue"


def pixel_questions(run: Path, number: int = 1, **rules: Any) -> AnnotationStore:
    """Write a round of pixels of one image: three share a segment, two have none."""
    store = AnnotationStore(run / "questions")
    round_folder = store.round_folder(number)
    (round_folder / "overlays").mkdir(parents=True)
    file = run / "street.png"
    street_image().save(file)
    street_image().resize((WIDTH, HEIGHT)).save(round_folder / "overlays" / "street.png")
    cells = [(15, 31, 1), (16, 31, 1), (17, 33, 1), (3, 5, None), (30, 60, None)]
    questions = [
        Question(
            *(n, f"street.png#{y},{x}", "street.png", "overlays/street.png", str(file)),
            area=QuestionArea(y, x, HEIGHT, WIDTH, consecutive_runs([y * WIDTH + x])),
            segment=segment,
            guess="red",
            probability=0.5,
            u_dis_quantile=0.9,
            u_data_quantile=0.1,
        )
        for n, (y, x, segment) in enumerate(cells, start=1)
    ]
    rules = {"unit": "pixel", "query": "duc", **rules}
    QuestionRound.write(round_folder, RoundRules(number, CLASSES, **rules), questions)
    return store
