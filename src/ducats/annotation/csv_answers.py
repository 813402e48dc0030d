"""Import of answers from ``answers*.csv`` in a round's folder. Files may be partial, rows in any order."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from ducats.annotation.answer import MAX_TEXT_LENGTH, Answer, parse_word
from ducats.annotation.question import QuestionRound
from ducats.annotation.store import MAX_ANSWER_SECONDS, AnnotationStore
from ducats.runfolder.question_names import ANSWER_TABLES
from ducats.utils.csv_files import unescape_cell
from ducats.utils.errors import UserError

DEFAULT_ANNOTATOR = "files"  # annotator of answers.csv if it has no annotator column
MAX_LISTED_CLASSES = 20  # classes listed in a message
SECONDS_TOLERANCE = 0.001  # tolerance for rounding, in seconds


class CsvAnswer(NamedTuple):
    """One row of a CSV file."""

    line_number: int
    question: str
    word: str
    annotator: str
    seconds: str


def import_csv_answers(store: AnnotationStore, round_number: int) -> list[str]:
    """Log the new answers in a round's CSV files; return one message per problem.

    A changed row is a new answer. The answer of a removed row stays in the log. The seconds of a row are its
    total time: when a row changes, only the difference is added.
    """
    question_round = store.question_round(round_number)
    problems: list[str] = []
    for path in sorted(question_round.folder.glob(ANSWER_TABLES)):
        try:
            lines = read_csv_answers(path, per_pixel=question_round.rules.unit != "image")
        except UserError as error:
            problems.append(str(error))
            continue
        problems += _import_file(store, question_round, path, lines)
    return problems


def _import_file(
    store: AnnotationStore, question_round: QuestionRound, path: Path, lines: list[CsvAnswer]
) -> list[str]:
    channel, rules = f"{question_round.folder.name}/{path.name}", question_round.rules
    newest_answers: dict[tuple[str, str], Answer] = {}  # by annotator and question
    known_rejected: set[tuple[str, str, str]] = set()
    counted_seconds: dict[tuple[str, str], float] = {}
    for answer in store.answers():
        if answer.channel == channel and answer.reject_reason in CSV_REJECT_REASONS:
            known_rejected.add((answer.annotator, answer.question, answer.word))
        elif answer.channel == channel:
            key = answer.annotator, answer.question
            newest_answers[key] = answer
            if answer.reject_reason is None:
                counted_seconds[key] = counted_seconds.get(key, 0.0) + (answer.seconds or 0.0)
    raw_answers: list[dict[str, Any]] = []
    problems: list[str] = []
    first_lines: dict[tuple[str, str], CsvAnswer] = {}
    for line in lines:
        where, word = f"{path} line {line.line_number}", line.word
        if line.question not in question_round.by_id:
            line = line._replace(question=line.question[:MAX_TEXT_LENGTH])  # as it is logged
            problems.append(f"{where}: {line.question!r} is not a question of this round; remove the line")
        elif not line.word:
            continue
        else:
            kind, word = parse_word(line.word, rules.classes)
            if kind == "new" and not rules.allow_new_classes:
                classes = _list_classes(rules.classes)
                problems.append(f"{where}: {line.word!r} is not a class; use one of: {classes}")
        key, seconds = (line.annotator, line.question), _parse_seconds(line.seconds)
        raw: dict[str, Any] = {"question": line.question, "word": word, "annotator": line.annotator}
        if key in first_lines:
            earlier = first_lines[key]
            same = earlier.word.casefold() == line.word.casefold()
            verb = "repeats" if same else "contradicts"
            problems.append(
                f"{where}: the answer to {line.question!r} {verb} line {earlier.line_number}; keep one"
            )
            raw["reject_reason"] = "duplicate"
        elif isinstance(seconds, str):
            problems.append(
                f"{where}: {seconds!r} is not a number of seconds; write a number or leave it empty"
            )
            raw["reject_reason"] = "malformed"
        else:
            if seconds is not None:
                raw["seconds"] = seconds = round(max(0.0, seconds - counted_seconds.get(key, 0.0)), 3)
            previous = newest_answers.get(key)
            if previous is not None and previous.word == word:
                is_counted = seconds is None or seconds <= SECONDS_TOLERANCE
                if is_counted or (previous.reject_reason and seconds == previous.seconds):
                    first_lines[key] = line
                    continue
        first_lines.setdefault(key, line)
        if "reject_reason" not in raw or (*key, word) not in known_rejected:
            raw_answers.append(raw)
    if raw_answers:
        store.receive(raw_answers, channel=channel)
    return problems


CSV_REJECT_REASONS = ("duplicate", "malformed")  # reasons for which this module rejects a row


def read_csv_answers(path: Path, *, per_pixel: bool = False) -> list[CsvAnswer]:
    """Read the non-empty rows of a CSV file.

    Args:
        per_pixel: whether questions are about pixels and have ids ``KEY#Y,X``.

    Raises:
        UserError: The file is not UTF-8 text or lacks a column.
    """
    needed = ("key", "y", "x") if per_pixel else ("key",)
    default_annotator = path.stem.removeprefix("answers").strip("-_ ") or DEFAULT_ANNOTATOR
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
            answers = []
            for row in reader:
                cells = {name: unescape_cell(value) for name, value in row.items() if isinstance(value, str)}
                if any(value.strip() for value in cells.values()):
                    answers.append(_parse_row(reader.line_num, cells, default_annotator, per_pixel))
            return answers
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save it as CSV UTF-8") from None


def _parse_row(line_number: int, cells: dict[str, str], default_annotator: str, per_pixel: bool) -> CsvAnswer:
    question = cells.get("id", "")
    if not question:
        question = cells.get("key", "")
        if per_pixel:
            question += f"#{cells.get('y', '').strip()},{cells.get('x', '').strip()}"
    annotator = (cells.get("annotator", "").strip() or default_annotator)[:MAX_TEXT_LENGTH].strip()
    word = cells.get("label", "").strip()[:MAX_TEXT_LENGTH].strip()
    return CsvAnswer(line_number, question, word, annotator, cells.get("seconds", "").strip())


def _parse_seconds(text: str) -> float | str | None:
    """Parse seconds; None if empty or implausible, the text itself if it is not a number."""
    try:
        value = float(text.replace(",", ".")) if text else None
    except ValueError:
        return text
    return value if value is not None and 0 <= value <= MAX_ANSWER_SECONDS else None


def _list_classes(classes: tuple[str, ...]) -> str:
    return (
        ", ".join(classes[:MAX_LISTED_CLASSES])
        + (", …" if len(classes) > MAX_LISTED_CLASSES else "")
        + ", void or unsure"
    )
