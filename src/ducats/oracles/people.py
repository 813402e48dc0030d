"""People answer through files: questions with thumbnails out, a CSV of answers in; pixels: ``masks``."""

import csv
import html
import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ducats.domain import VOID, Images
from ducats.errors import AwaitingLabels, UserError
from ducats.files import write_atomically, write_text_atomically
from ducats.ledger import Request
from ducats.oracles import masks
from ducats.oracles.picture import picture

VOID_WORD = "void"  # the answer "no class applies"
THUMBNAIL = 256


class People:
    """Writes the questions, pauses the run, and reads the answers when the same command comes back.

    Args:
        folder: where to put the rounds; each gets a sub-folder.
        pool: the images that may be asked for.
        classes: names that an answer may give.
        sizes: where pixels are bought, each image's height and width, in which positions count: ``(N, 2)``.
    """

    def __init__(
        self, folder: str | Path, pool: Images, classes: Sequence[str], sizes: Tensor | None = None
    ) -> None:
        self._folder = Path(folder)
        self._pool = pool
        self._classes = list(classes)
        self._sizes = sizes

    def __call__(self, request: Request) -> Tensor:
        """Return the answers, or ask and raise ``AwaitingLabels``."""
        folder = self._folder / f"round-{request.round:02d}"
        if self._sizes is not None:
            return masks.answer(folder, request, self._pool, self._classes, self._sizes)
        keys = [self._pool.keys[image] for image in request.image.tolist()]
        if not (folder / "questions.csv").exists():
            self._ask(folder, request, keys)
        answers = self._answers(folder / "answers.csv", set(keys))
        missing = [key for key in keys if key not in answers]
        if missing and (folder / "answers.csv").exists():
            raise AwaitingLabels(
                f"round {request.round} waits for {len(missing)} of {len(keys)} labels, first "
                f"{missing[0]!r}: fill them in in {folder / 'answers.csv'} and give the same command again"
            )
        if missing:
            raise AwaitingLabels(
                f"round {request.round} waits for {len(keys)} labels: copy {folder / 'questions.csv'} to "
                f"answers.csv beside it, fill in the column `label` (thumbnails and class names lie there, "
                f"too; `{VOID_WORD}` if no class applies), and give the same command again"
            )
        return torch.tensor([answers[key] for key in keys], dtype=torch.long)

    def _ask(self, folder: Path, request: Request, keys: list[str]) -> None:
        rows = []
        for number, (image, key) in enumerate(zip(request.image.tolist(), keys, strict=True), start=1):
            thumbnail = f"thumbnails/{number:04d}.png"
            write_atomically(
                folder / thumbnail, partial(_fitted(picture(self._pool, image)).save, format="PNG")
            )
            file = self._pool.files[image] if self._pool.files is not None else ""
            rows.append({"number": number, "key": key, "label": "", "thumbnail": thumbnail, "file": file})
        write_text_atomically(folder / "classes.txt", "\n".join(self._classes) + "\n")
        write_text_atomically(folder / "questions.html", _contact_sheet(request.round, rows, self._classes))
        text = io.StringIO()
        writer = csv.DictWriter(text, ["number", "key", "label", "thumbnail", "file"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        # Last: a round whose questions are there is complete.
        write_text_atomically(folder / "questions.csv", text.getvalue())

    def _answers(self, path: Path, asked: set[str]) -> dict[str, int]:
        if not path.exists():
            return {}
        answers: dict[str, int] = {}
        lines: dict[str, int] = {}
        for line, key, word in _read(path):
            if key not in asked:
                raise UserError(f"{path} line {line}: {key!r} was not asked in this round; remove the line")
            if not word:
                continue
            label = self._label(word, f"{path} line {line}")
            if key in answers:
                doubled = "again" if answers[key] == label else "in contradiction"
                raise UserError(
                    f"{path} line {line}: {key!r} is answered {doubled} to line {lines[key]}; keep one"
                )
            answers[key], lines[key] = label, line
        return answers

    def _label(self, word: str, where: str) -> int:
        if word in self._classes:
            return self._classes.index(word)
        alike = [index for index, name in enumerate(self._classes) if name.lower() == word.lower()]
        if len(alike) == 1:
            return alike[0]
        if word.lower() == VOID_WORD:
            return VOID
        shown = ", ".join(self._classes[:20]) + (", …" if len(self._classes) > 20 else "")
        raise UserError(f"{where}: {word!r} is no class; write one of: {shown}, or {VOID_WORD}")


def _fitted(picture: Image.Image) -> Image.Image:
    scale = THUMBNAIL / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height))


def _contact_sheet(number: int, rows: Sequence[Mapping[str, object]], classes: Sequence[str]) -> str:
    """All questions of a round on one page, to look at while answers.csv is filled in."""
    figures = "".join(
        f'<figure><img src="{row["thumbnail"]}" alt=""><figcaption>{row["number"]}: '
        f"{html.escape(str(row['key']))}</figcaption></figure>"
        for row in rows
    )
    style = (
        "body{font:16px sans-serif;margin:1em}main{display:flex;flex-wrap:wrap;gap:1em}"
        "figure{margin:0;width:180px}img{width:180px;height:180px;object-fit:contain;image-rendering:pixelated;"
        "background:#eee}figcaption{overflow-wrap:anywhere;font-size:13px}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Round {number}</title><style>{style}</style><h1>Round {number}: {len(rows)} questions</h1>"
        f"<p>Classes: {html.escape(', '.join(classes))}; or {VOID_WORD}. "
        "Write the answers into answers.csv.</p>"
        f"<main>{figures}</main></html>\n"
    )


def _read(path: Path) -> list[tuple[int, str, str]]:
    """Lines of an answer file as (line number, key, answer)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Spreadsheets of half of Europe separate by semicolons.
            head = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=";" if ";" in head and "," not in head else ",")
            columns = set(reader.fieldnames or ())
            if not {"key", "label"} <= columns:
                raise UserError(
                    f"{path} needs the columns `key` and `label` in its first line, not {sorted(columns)}"
                )
            return [
                (reader.line_num, row["key"] or "", (row["label"] or "").strip())
                for row in reader
                if any((value or "").strip() for value in row.values() if isinstance(value, str))
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text ({error}): save it as CSV UTF-8") from None
