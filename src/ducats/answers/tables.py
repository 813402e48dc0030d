"""Answers in CSV files: ``answers*.csv`` in a round's folder, in any order and in parts."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from ducats.answers.answer import LONGEST, Answer, kind_of
from ducats.answers.desk import MOST_SECONDS, Desk
from ducats.answers.question import Sheet
from ducats.errors import UserError

NOBODY = "files"  # who answers in answers.csv, if it does not say
SHOWN = 20  # classes that a message names
SPARE = 0.001  # seconds that rounding may leave


class Line(NamedTuple):
    """A line of a file."""

    number: int
    question: str
    word: str
    who: str
    seconds: str


def bring(desk: Desk, number: int) -> list[str]:
    """Put down what is new in a round's files, once; return what is wrong with them, a sentence each.

    A line that was changed is a new answer; one that was removed is still on record. Seconds are the line's
    in all, and are not counted again when it is changed.
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
    heard: dict[tuple[str, str], Answer] = {}  # the newest of each person and question
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
        line = line if asked else line._replace(question=line.question[:LONGEST])  # as the desk keeps it
        where, place = f"{path} line {line.number}", (line.who, line.question)
        if not asked:
            wrong.append(f"{where}: {line.question!r} was not asked in this round; remove the line")
        elif not line.word:
            continue
        kind, word = kind_of(line.word, sheet.terms.classes) if asked else ("none", line.word)
        raw: dict[str, Any] = {"question": line.question, "word": word, "who": line.who, "seconds": None}
        seconds = _seconds(line.seconds)
        if kind == "new" and not sheet.terms.new_classes:
            wrong.append(f"{where}: {line.word!r} is no class; write one of: {_words(sheet.terms.classes)}")
        if place in first:
            before = first[place]
            same = before.word.casefold() == line.word.casefold()
            how = "again" if same else "in contradiction"
            wrong.append(f"{where}: {line.question!r} is answered {how} to line {before.number}; keep one")
            raw["refused"] = "doubled"
        elif isinstance(seconds, str):
            wrong.append(f"{where}: {seconds!r} is no number of seconds; write one, or leave it empty")
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


OURS = ("doubled", "malformed")  # why a line is refused before the desk looks at it


def read(path: Path, *, of_pixels: bool = False) -> list[Line]:
    """The lines of a file that say something.

    Args:
        path: of the file.
        of_pixels: whether questions are about pixels, and named ``KEY#Y,X``.

    Raises:
        UserError: it is no such file.
    """
    needed = ("key", "y", "x") if of_pixels else ("key",)
    default = path.stem.removeprefix("answers").strip("-_ ") or NOBODY
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Spreadsheets of half of Europe separate by semicolons.
            head = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=";" if ";" in head and "," not in head else ",")
            columns = set(reader.fieldnames or ())
            if "label" not in columns or not ("id" in columns or columns.issuperset(needed)):
                names = " and ".join(f"`{name}`" for name in (*needed, "label"))
                raise UserError(f"{path} needs the columns {names} in its first line, not {sorted(columns)}")
            found = []
            for row in reader:
                cells = {name: value for name, value in row.items() if isinstance(value, str)}
                if any(value.strip() for value in cells.values()):
                    found.append(_line(reader.line_num, cells, default, of_pixels))
            return found
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text ({error}): save it as CSV UTF-8") from None


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
    """A number, none, or the text if it is no number; what cannot be believed is none."""
    try:
        value = float(text.replace(",", ".")) if text else None
    except ValueError:
        return text
    return value if value is not None and 0 <= value <= MOST_SECONDS else None


def _words(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:SHOWN]) + (", …" if len(classes) > SHOWN else "") + ", or void, or unsure"
