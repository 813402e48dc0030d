"""Question files for annotators, with model hints."""

import html
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ducats.annotation import VOID_WORD, Question, QuestionArea
from ducats.annotation.oracles.display_image import load_display_image
from ducats.annotation.question import consecutive_runs
from ducats.data.domain import Images
from ducats.ledger import Request, central_pixels
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.question_names import OVERLAYS, QUESTIONS_TABLE, THUMBNAILS
from ducats.utils import files
from ducats.utils.findings import pluralise

THUMBNAIL_SIZE = 256
HINT_COLUMNS = ("guess", "probability", "u_dis", "u_data")  # columns of the CSV files
HINT_VALUES = ("probability", "u_dis", "u_data", "u_dis_quantile", "u_data_quantile")


def model_hints(hints: AnnotatorHints | None, classes: Sequence[str], n_units: int) -> list[dict[str, Any]]:
    """Return the hints for each unit as fields of a ``Question``; empty if there are none."""
    if hints is None or len(hints) != n_units:
        return [{} for _ in range(n_units)]
    unit_fields = []
    for unit in range(n_units):
        guess = int(hints.guess[unit])
        fields: dict[str, Any] = {"guess": classes[guess]} if 0 <= guess < len(classes) else {}
        values = {name: float(getattr(hints, name)[unit]) for name in HINT_VALUES}
        fields |= {name: round(value, 6) for name, value in values.items() if math.isfinite(value)}
        unit_fields.append({**fields, "segment": int(hints.segment[unit])})
    return unit_fields


def image_questions(request: Request, pool: Images, hints: Sequence[Mapping[str, Any]]) -> list[Question]:
    """Return one question per requested image, in order."""
    return [
        Question(
            number=number,
            id=pool.keys[image],
            key=pool.keys[image],
            image_path=f"{THUMBNAILS}/{number:04d}.png",
            original_path=_original_path(pool, image),
            **{name: value for name, value in fields.items() if name != "segment"},
        )
        for number, (image, fields) in enumerate(zip(request.image.tolist(), hints, strict=True), start=1)
    ]


def pixel_questions(
    request: Request, pool: Images, sizes: Tensor, names: Sequence[str], hints: Sequence[Mapping[str, Any]]
) -> list[Question]:
    """Return one question per requested unit, in order; ``names`` are those of the images' overlays."""
    questions: list[Question] = []
    for image, position, unit_sizes in request.blocks():
        height, width = sizes[image].tolist()
        centres = np.divmod(central_pixels(position.numpy(), unit_sizes.numpy(), width), width)
        units = position.split(unit_sizes.tolist())
        for unit_positions, y, x in zip(units, *(coordinate.tolist() for coordinate in centres), strict=True):
            questions.append(
                Question(
                    number=len(questions) + 1,
                    id=f"{pool.keys[image]}#{y},{x}",
                    key=pool.keys[image],
                    image_path=f"{OVERLAYS}/{names[image]}",
                    original_path=_original_path(pool, image),
                    area=QuestionArea(y, x, height, width, consecutive_runs(unit_positions.tolist())),
                    **hints[len(questions)],
                )
            )
    return questions


def _original_path(pool: Images, image: int) -> str:
    return str(pool.files[image]) if pool.files is not None else ""


def write_image_questions(
    folder: Path, request: Request, questions: Sequence[Question], pool: Images
) -> None:
    """Write the thumbnails and the CSV file to fill in."""
    for question, image in zip(questions, request.image.tolist(), strict=True):
        thumbnail = _make_thumbnail(load_display_image(pool, image))
        files.write_atomically(folder / question.image_path, partial(thumbnail.save, format="PNG"))
    rows = [[q.number, q.key, "", q.image_path, q.original_path, *hint_cells(q)] for q in questions]
    # Written last: its presence marks the round as complete.
    files.write_csv_atomically(
        folder / QUESTIONS_TABLE, ["number", "key", "label", "thumbnail", "file", *HINT_COLUMNS], rows
    )


def hint_cells(question: Question) -> list[Any]:
    """Return the hints as CSV cells; empty if unknown."""
    values = (getattr(question, name) for name in HINT_COLUMNS)
    return ["" if value is None else value for value in values]


def _make_thumbnail(image: Image.Image) -> Image.Image:
    scale = THUMBNAIL_SIZE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height))


def contact_sheet(round_number: int, questions: Sequence[Question], classes: Sequence[str]) -> str:
    """Return an HTML page with all questions of a round, for use while filling in answers.csv."""
    figures = "".join(
        f'<figure><img src="{question.image_path}" alt=""><figcaption>{question.number}: '
        f"{html.escape(question.key)}</figcaption></figure>"
        for question in questions
    )
    style = (
        "body{font:16px sans-serif;margin:1em}main{display:flex;flex-wrap:wrap;gap:1em}"
        "figure{margin:0;width:180px}img{width:180px;height:180px;object-fit:contain;image-rendering:pixelated;"
        "background:#eee}figcaption{overflow-wrap:anywhere;font-size:13px}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Round {round_number}</title><style>{style}</style>"
        f"<h1>Round {round_number}: {pluralise(len(questions), 'question')}</h1>"
        f"<p>Classes: {html.escape(', '.join(classes))}; or {VOID_WORD}. "
        "Write your answers to answers.csv.</p>"
        f"<main>{figures}</main></html>\n"
    )
