"""Question files for annotators, with model hints."""

import html
import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ducats.annotation import VOID_WORD, Question, QuestionArea
from ducats.annotation.oracles.display_image import image_digest, load_display_image
from ducats.annotation.question import consecutive_runs
from ducats.data.domain import Images
from ducats.ledger import Request, central_pixels
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.question_names import OVERLAYS, QUESTIONS_TABLE, THUMBNAILS
from ducats.utils import files
from ducats.utils.findings import pluralise
from ducats.utils.image_files import read_pixel_format

THUMBNAIL_SIZE = 256
LARGE_THUMBNAIL_SIZE = 1024  # at most, and not larger than the image
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


def unit_digests(request: Request, pool: Images) -> list[dict[str, Any]]:
    """Return the digest of each unit's image as a field of a ``Question``."""
    digests = {image: image_digest(pool, image) for image in set(request.pixel_runs.image.tolist())}
    return [
        {"image_digest": digests[block.image]}
        for block in request.blocks()
        for _ in block.unit_sizes.tolist()
    ]


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
        _write_thumbnail(folder, question, pool, image)
    write_question_table(folder, questions)


def write_deep_thumbnails(
    folder: Path, request: Request, questions: Sequence[Question], pool: Images
) -> None:
    """Write the thumbnails of images that cannot be shown from their files."""
    for question, image in zip(questions, request.image.tolist(), strict=True):
        if pool.files is None or _is_deep(pool, image):
            _write_thumbnail(folder, question, pool, image)


def _is_deep(pool: Images, image: int) -> bool:
    """Whether the file has more than 8 bits per value; such an image is shown by its thumbnail only."""
    try:
        return pool.files is not None and read_pixel_format(pool.files[image]).needs_range
    except OSError:  # not readable any more; reported when it is shown
        return False


def _write_thumbnail(folder: Path, question: Question, pool: Images, image: int) -> None:
    max_size = LARGE_THUMBNAIL_SIZE if _is_deep(pool, image) else THUMBNAIL_SIZE
    thumbnail = _make_thumbnail(load_display_image(pool, image), max_size)
    files.write_atomically(folder / question.image_path, partial(thumbnail.save, format="PNG"))


def write_question_table(folder: Path, questions: Sequence[Question]) -> None:
    """Write the CSV file of images to fill in."""
    rows = [[q.number, q.key, "", q.image_path, q.original_path, *hint_cells(q)] for q in questions]
    # Written last: its presence marks the round as complete.
    files.write_csv_atomically(
        folder / QUESTIONS_TABLE, ["number", "key", "label", "thumbnail", "file", *HINT_COLUMNS], rows
    )


def hint_cells(question: Question) -> list[Any]:
    """Return the hints as CSV cells; empty if unknown."""
    values = (getattr(question, name) for name in HINT_COLUMNS)
    return ["" if value is None else value for value in values]


def _make_thumbnail(image: Image.Image, max_size: int) -> Image.Image:
    scale = min(max_size, max(THUMBNAIL_SIZE, *image.size)) / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height))


SHEET_STYLE = """
header p { color: var(--faint); font-size: .9rem; overflow-wrap: anywhere; }
main { padding: .75rem 1rem; }
ol { margin: .3rem 0 1rem; padding-left: 1.3rem; max-width: 50rem; }
ul { display: flex; flex-wrap: wrap; gap: .4rem; margin: .3rem 0 1.2rem; padding: 0; list-style: none; }
ul li, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
ul li { padding: .2rem .7rem; overflow-wrap: anywhere; }
code { font: .9em ui-monospace, monospace; }
section { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
figure { margin: 0; padding: 6px; break-inside: avoid; }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--stage); }
figcaption { padding-top: .3rem; font-size: .85rem; color: var(--faint); overflow-wrap: anywhere; }
figcaption b { display: block; color: var(--ink); font-size: 1rem; }
"""  # after the theme that the labelling page has, too


def contact_sheet(round_number: int, questions: Sequence[Question], classes: Sequence[str]) -> str:
    """Return an HTML page with all questions of a round, for use while filling in answers.csv."""
    theme = resources.files("ducats.annotation.page").joinpath("static/theme.css").read_text(encoding="utf-8")
    count = pluralise(len(questions), "image")
    names = "".join(f"<li>{html.escape(name)}</li>" for name in classes)
    figures = "".join(
        f'<figure><img src="{question.image_path}" alt="Image {question.number}" loading="lazy"><figcaption>'
        f"<b>{question.number}</b> {html.escape(question.key)}</figcaption></figure>\n"
        for question in questions
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Round {round_number} · ducats</title>
<style>
{theme}{SHEET_STYLE}</style>
</head>
<body>
<header><strong>Round {round_number}</strong><p>{count} to label</p></header>
<main>
<h1>Which class is each image?</h1>
<ol>
<li>Copy <code>{QUESTIONS_TABLE}</code>, which is in this folder, to <code>answers.csv</code>.</li>
<li>Open the copy in a spreadsheet or an editor and write each image's class into the column
<code>label</code>. Write <code>{VOID_WORD}</code> if it is none of these, and <code>unsure</code> if you
cannot tell.</li>
<li>Save it as CSV. Then run the same <code>ducats run</code> command again.</li>
</ol>
<ul aria-label="Classes">{names}</ul>
<section aria-label="Images">
{figures}</section>
</main>
</body>
</html>
"""
