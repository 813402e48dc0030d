"""Question files for annotators, with model hints."""

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ducats import files
from ducats.answers import VOID_WORD, Place, Question
from ducats.answers.question import runs_of
from ducats.domain import Images
from ducats.ledger import Notes, Request, middles
from ducats.oracles.picture import picture

THUMBNAIL = 256
THOUGHTS = ("guess", "probability", "u_dis", "u_data")  # columns of the CSV files
MEASURED = ("probability", "u_dis", "u_data", "u_dis_above", "u_data_above")


def thoughts(notes: Notes | None, classes: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return the hints for each unit as fields of a ``Question``; empty if there are none."""
    if notes is None or len(notes) != count:
        return [{} for _ in range(count)]
    found = []
    for place in range(count):
        guess = int(notes.guess[place])
        one: dict[str, Any] = {name: float(getattr(notes, name)[place]) for name in MEASURED}
        one = {name: round(value, 6) for name, value in one.items() if math.isfinite(value)}
        if 0 <= guess < len(classes):
            one["guess"] = classes[guess]
        found.append({**one, "segment": int(notes.segment[place])})
    return found


def of_images(request: Request, pool: Images, thought: Sequence[Mapping[str, Any]]) -> list[Question]:
    """Return one question per requested image, in order."""
    return [
        Question(
            number=number,
            id=pool.keys[image],
            key=pool.keys[image],
            picture=f"thumbnails/{number:04d}.png",
            file=_file(pool, image),
            **{name: value for name, value in known.items() if name != "segment"},
        )
        for number, (image, known) in enumerate(zip(request.image.tolist(), thought, strict=True), start=1)
    ]


def of_pixels(
    request: Request,
    pool: Images,
    sizes: Tensor,
    names: Sequence[str],
    thought: Sequence[Mapping[str, Any]],
) -> list[Question]:
    """Return one question per requested unit, in order.

    Args:
        request: the units to label.
        pool: images to which the request refers.
        sizes: ``(N, 2)``, height and width of the grid in which each image's pixels are labelled.
        names: file name of each image's mask and overlay.
        thought: hints for each unit, as fields of a ``Question``.
    """
    found: list[Question] = []
    for image, position, unit in request.blocks():
        height, width = sizes[image].tolist()
        places = np.divmod(middles(position.numpy(), unit.numpy(), width), width)
        units = position.split(unit.tolist())
        for one, y, x in zip(units, *(place.tolist() for place in places), strict=True):
            found.append(
                Question(
                    number=len(found) + 1,
                    id=f"{pool.keys[image]}#{y},{x}",
                    key=pool.keys[image],
                    picture=f"overlays/{names[image]}",
                    file=_file(pool, image),
                    place=Place(y, x, height, width, runs_of(one.tolist())),
                    **thought[len(found)],
                )
            )
    return found


def unit_sizes(request: Request) -> np.typing.NDArray[np.int64]:
    """Return the number of pixels in each unit, in order."""
    addresses = request.addresses
    found: np.typing.NDArray[np.int64] = addresses.unit_sizes(np.arange(len(addresses.image)))[0]
    return found


def _file(pool: Images, image: int) -> str:
    return str(pool.files[image]) if pool.files is not None else ""


def write_images(folder: Path, request: Request, questions: Sequence[Question], pool: Images) -> None:
    """Write the thumbnails and the CSV file to fill in."""
    for question, image in zip(questions, request.image.tolist(), strict=True):
        shown = _fitted(picture(pool, image))
        files.write_atomically(folder / question.picture, partial(shown.save, format="PNG"))
    rows = [[q.number, q.key, "", q.picture, q.file, *thought_cells(q)] for q in questions]
    # Written last: its presence marks the round as complete.
    write_table(folder / "questions.csv", ["number", "key", "label", "thumbnail", "file", *THOUGHTS], rows)


def thought_cells(question: Question) -> list[Any]:
    """Return the hints as CSV cells; empty if unknown."""
    found = (getattr(question, name) for name in THOUGHTS)
    return ["" if value is None else value for value in found]


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    files.write_text_atomically(path, text.getvalue())


def _fitted(shown: Image.Image) -> Image.Image:
    scale = THUMBNAIL / max(shown.size)
    width, height = (max(1, round(side * scale)) for side in shown.size)
    return shown.resize((width, height))


def contact_sheet(number: int, questions: Sequence[Question], classes: Sequence[str]) -> str:
    """Return an HTML page with all questions of a round, for use while filling in answers.csv."""
    figures = "".join(
        f'<figure><img src="{question.picture}" alt=""><figcaption>{question.number}: '
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
        f"<title>Round {number}</title><style>{style}</style>"
        f"<h1>Round {number}: {len(questions)} questions</h1>"
        f"<p>Classes: {html.escape(', '.join(classes))}; or {VOID_WORD}. "
        "Write your answers to answers.csv.</p>"
        f"<main>{figures}</main></html>\n"
    )
