"""Questions as people see them: what is asked, with what the model thought of it."""

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
THOUGHTS = ("guess", "probability", "u_dis", "u_data")  # columns of the tables
MEASURED = ("probability", "u_dis", "u_data", "u_dis_above", "u_data_above")


def thoughts(notes: Notes | None, classes: Sequence[str], count: int) -> list[dict[str, Any]]:
    """What the model thought of each unit, as fields of a question; nothing where that is not known."""
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
    """A question for each image, in order."""
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
    """A question for each unit, in order.

    Args:
        request: what is asked.
        pool: the images that may be asked for.
        sizes: ``(N, 2)``, height and width of each image in which positions count.
        names: of each image's pictures.
        thought: of each unit.
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
    """Addresses of each unit, in order."""
    addresses = request.addresses
    found: np.typing.NDArray[np.int64] = addresses.sizes(np.arange(len(addresses.image)))[0]
    return found


def _file(pool: Images, image: int) -> str:
    return str(pool.files[image]) if pool.files is not None else ""


def write_images(folder: Path, request: Request, questions: Sequence[Question], pool: Images) -> None:
    """The thumbnails, the table to fill in, and all questions on one page."""
    for question, image in zip(questions, request.image.tolist(), strict=True):
        shown = _fitted(picture(pool, image))
        files.write_atomically(folder / question.picture, partial(shown.save, format="PNG"))
    rows = [[q.number, q.key, "", q.picture, q.file, *thought_cells(q)] for q in questions]
    # Last: a round whose table is there is complete.
    write_table(folder / "questions.csv", ["number", "key", "label", "thumbnail", "file", *THOUGHTS], rows)


def thought_cells(question: Question) -> list[Any]:
    """What the model thought, as cells of a table; empty where that is not known."""
    found = (getattr(question, name) for name in THOUGHTS)
    return ["" if value is None else value for value in found]


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A CSV, whole or not at all."""
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
    """All questions of a round on one page, to look at while answers.csv is filled in."""
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
        "Write the answers into answers.csv.</p>"
        f"<main>{figures}</main></html>\n"
    )
