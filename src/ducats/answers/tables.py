"""Import of answers from ``answers*.csv`` in a round's folder. Files may be partial, rows in any order."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from ducats.answers.answer import LONGEST, Answer, kind_of
from ducats.answers.desk import MOST_SECONDS, Desk
from ducats.answers.question import Sheet
from ducats.errors import UserError

NOBODY = "files"  # annotator of answers.csv if it has no annotator column
SHOWN = 20  # classes listed in a message
SPARE = 0.001  # tolerance for rounding, in seconds


class Line(NamedTuple):
    """One row of a CSV file."""

    number: int
    question: str
    word: str
    who: str
    seconds: str


def bring(desk: Desk, number: int) -> list[str]:
    """Log the new answers in a round's CSV files; return one message per problem.

    A changed row is a new answer. The answer of a removed row stays in the log. The seconds of a row are its
    total time: when a row changes, only the difference is added.
    """
    sheet = desk.sheet(number)
    wrong: list[str] = []
    for path in sorted(sheet.folder.glob("answers*.csv")):
        try:
            lines = read(path, of_pixels=sheet.terms.unit != "image")
        except UserError as error:
            wrong.append(str(error))
            continue
        wrong += _bring(desk, sheet, path, lines)
    return wrong


def _bring(desk: Desk, sheet: Sheet, path: Path, lines: list[Line]) -> list[str]:
    via = f"{sheet.folder.name}/{path.name}"
    heard: dict[tuple[str, str], Answer] = {}  # newest answer by annotator and question
    unfit: set[tuple[str, str, str]] = set()
    counted: dict[tuple[str, str], float] = {}  # seconds
    for answer in desk.answers():
        if answer.via == via and answer.refused in OURS:
            unfit.add((answer.who, answer.question, answer.word))
        elif answer.via == via:
            place = answer.who, answer.question
            heard[place] = answer
            if answer.refused is None:
                counted[place] = counted.get(place, 0.0) + (answer.seconds or 0.0)
    given: list[dict[str, Any]] = []
    wrong: list[str] = []
    first: dict[tuple[str, str], Line] = {}
    for line in lines:
        asked = line.question in sheet.by_id
        line = line if asked else line._replace(question=line.question[:LONGEST])  # as it is logged
        where, place = f"{path} line {line.number}", (line.who, line.question)
        if not asked:
            wrong.append(f"{where}: {line.question!r} is not a question of this round; remove the line")
        elif not line.word:
            continue
        kind, word = kind_of(line.word, sheet.terms.classes) if asked else ("none", line.word)
        raw: dict[str, Any] = {"question": line.question, "word": word, "who": line.who, "seconds": None}
        seconds = _seconds(line.seconds)
        if kind == "new" and not sheet.terms.new_classes:
            wrong.append(f"{where}: {line.word!r} is not a class; use one of: {_words(sheet.terms.classes)}")
        if place in first:
            before = first[place]
            same = before.word.casefold() == line.word.casefold()
            how = "repeats" if same else "contradicts"
            wrong.append(f"{where}: the answer to {line.question!r} {how} line {before.number}; keep one")
            raw["refused"] = "doubled"
        elif isinstance(seconds, str):
            wrong.append(f"{where}: {seconds!r} is not a number of seconds; write a number or leave it empty")
            raw["refused"] = "malformed"
        else:
            more = None if seconds is None else round(max(0.0, seconds - counted.get(place, 0.0)), 3)
            raw["seconds"] = more
            old = heard.get(place)
            known = more is None or more <= SPARE or (old is not None and old.refused and more == old.seconds)
            if old is not None and old.word == word and known:
                first[place] = line
                continue
        first.setdefault(place, line)
        if "refused" not in raw or (*place, word) not in unfit:
            given.append(raw)
    if given:
        desk.receive(given, via=via)
    return wrong


OURS = ("doubled", "malformed")  # reasons for which this module rejects a row


def read(path: Path, *, of_pixels: bool = False) -> list[Line]:
    """Read the non-empty rows of a CSV file.

    Args:
        path: the CSV file.
        of_pixels: whether questions are about pixels and have ids ``KEY#Y,X``.

    Raises:
        UserError: The file is not UTF-8 text or lacks a column.
    """
    needed = ("key", "y", "x") if of_pixels else ("key",)
    default = path.stem.removeprefix("answers").strip("-_ ") or NOBODY
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Spreadsheets use semicolons in many European locales.
            head = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=";" if ";" in head and "," not in head else ",")
            columns = set(reader.fieldnames or ())
            if "label" not in columns or not ("id" in columns or columns.issuperset(needed)):
                names = " and ".join(f"`{name}`" for name in (*needed, "label"))
                raise UserError(f"{path} needs the columns {names}; its first line has {sorted(columns)}")
            found = []
            for row in reader:
                cells = {name: value for name, value in row.items() if isinstance(value, str)}
                if any(value.strip() for value in cells.values()):
                    found.append(_line(reader.line_num, cells, default, of_pixels))
            return found
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save it as CSV UTF-8") from None


def _line(number: int, cells: dict[str, str], default: str, of_pixels: bool) -> Line:
    question = cells.get("id", "")
    if not question:
        question = cells.get("key", "")
        if of_pixels:
            question += f"#{cells.get('y', '').strip()},{cells.get('x', '').strip()}"
    who = (cells.get("annotator", "").strip() or default)[:LONGEST].strip()
    word = cells.get("label", "").strip()[:LONGEST].strip()
    return Line(number, question, word, who, cells.get("seconds", "").strip())


def _seconds(text: str) -> float | str | None:
    """Parse seconds; None if empty or implausible, the text itself if it is not a number."""
    try:
        value = float(text.replace(",", ".")) if text else None
    except ValueError:
        return text
    return value if value is not None and 0 <= value <= MOST_SECONDS else None


def _words(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "") + ", void or unsure"
