"""Import of answers from ``answers*.csv`` in a round's folder. Files may be partial, rows in any order."""

import csv
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ducats.annotation.answer import MAX_TEXT_LENGTH, Answer, parse_word
from ducats.annotation.question import QuestionRound
from ducats.annotation.store import MAX_ANSWER_SECONDS, AnnotationStore
from ducats.runfolder.question_names import ANSWER_TABLES
from ducats.utils.csv_files import unescape_cell
from ducats.utils.errors import UserError

MAX_LISTED_CLASSES = 20  # classes, or lines with the same problem, listed in a message
MAX_LISTED_PROBLEMS = 100  # problems listed in a message
SECONDS_TOLERANCE = 0.001  # tolerance for rounding, in seconds


class CsvAnswer(NamedTuple):
    """One row of a CSV file."""

    line_number: int
    question: str
    word: str
    annotator: str
    seconds: str


class CheckedLine(NamedTuple):
    """A row of a CSV file with an answer, and what is wrong with it."""

    answer: CsvAnswer  # with the question as it is logged
    word: str  # as spelt in the classes
    seconds: float | None
    reject_reason: str | None  # if this module rejects the row
    problems: tuple[str, ...]  # messages


class CsvCheck(NamedTuple):
    """Result of checking a CSV file."""

    problems: list[str]  # one message per mistake, with its line
    answered: int  # questions of the round with an answer in the file
    questions: int  # all questions of the round


def import_csv_answers(store: AnnotationStore, round_number: int) -> list[str]:
    """Log the new answers in a round's CSV files; return one message per problem.

    A changed row is a new answer. The answer of a removed row stays in the log. The seconds of a row are its
    total time: when a row changes, only the difference is added.
    """
    question_round = store.question_round(round_number)
    problems: list[str] = []
    for path in sorted(question_round.folder.glob(ANSWER_TABLES)):
        try:
            lines = _checked_lines(path, store, question_round)
        except UserError as error:
            problems.append(str(error))
            continue
        _log_new_answers(store, f"{question_round.folder.name}/{path.name}", lines)
        problems += [problem for line in lines for problem in line.problems]
    return problems


def check_csv_answers(path: Path, store: AnnotationStore, round_number: int) -> CsvCheck:
    """Find all mistakes in a CSV file, without logging its answers."""
    question_round = store.question_round(round_number)
    n_questions = len(question_round.questions)
    try:
        lines = _checked_lines(path, store, question_round)
    except UserError as error:
        return CsvCheck([str(error)], 0, n_questions)
    answered = {line.answer.question for line in lines} & question_round.by_id.keys()
    return CsvCheck([problem for line in lines for problem in line.problems], len(answered), n_questions)


def describe_problems(problems: Sequence[str]) -> str:
    """Return one message for all problems in CSV files.

    >>> describe_problems(["a.csv line 2: x"])
    'a.csv line 2: x'
    """
    if len(problems) == 1:
        return problems[0]
    shown = [f"\n  {problem}" for problem in problems[:MAX_LISTED_PROBLEMS]]
    n_more = len(problems) - len(shown)
    return f"{len(problems)} mistakes in the answers:{''.join(shown)}" + (
        f"\n  and {n_more} more" if n_more else ""
    )


def _checked_lines(path: Path, store: AnnotationStore, question_round: QuestionRound) -> list[CheckedLine]:
    """Read and check the rows with an answer; raise ``UserError`` if the file is unreadable."""
    rules, first_lines = question_round.rules, dict[tuple[str, str], CsvAnswer]()
    found = []
    for line in read_csv_answers(path, per_pixel=rules.unit != "image"):
        word, problems, reject_reason = line.word, list[str](), None
        if line.question not in question_round.by_id:
            line = line._replace(question=line.question[:MAX_TEXT_LENGTH])  # as it is logged
            problems.append(f"{line.question!r} is not a question of this round; remove the line")
        elif not line.word:
            continue
        else:
            kind, word = parse_word(store.translate(line.word), rules.classes)
            if kind == "new" and not (rules.allow_new_classes or rules.live):
                problems.append(f"{line.word!r} is not a class; use one of: {_list_classes(rules.classes)}")
                reject_reason = "unknown class"
            elif kind == "new" and (similar := get_close_matches(word, rules.classes, n=1)):
                problems.append(
                    f"{line.word!r} is not a class; did you mean {similar[0]!r}? If it is a new class, "
                    f"add it first: ducats classes {shlex.quote(str(store.folder.parent))} --add "
                    f"{shlex.quote(word)}"
                )
                reject_reason = "misspelt class"
        seconds = _parse_seconds(line.seconds)
        earlier = first_lines.setdefault((line.annotator, line.question), line)
        if earlier is not line:
            verb = "repeats" if earlier.word.casefold() == line.word.casefold() else "contradicts"
            problems.append(f"the answer to {line.question!r} {verb} line {earlier.line_number}; keep one")
            reject_reason = reject_reason or "duplicate"
        if isinstance(seconds, str):
            problems.append(f"{seconds!r} is not a number of seconds; write a number or leave it empty")
            seconds, reject_reason = None, reject_reason or "malformed"
        messages = tuple(f"{path} line {line.line_number}: {problem}" for problem in problems)
        found.append(CheckedLine(line, word, seconds, reject_reason, messages))
    return found


def _log_new_answers(store: AnnotationStore, channel: str, lines: Sequence[CheckedLine]) -> None:
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
    for line, word, seconds, reject_reason, _ in lines:
        key = line.annotator, line.question
        raw: dict[str, Any] = {"question": line.question, "word": word, "annotator": line.annotator}
        if reject_reason is not None:
            if (*key, word) not in known_rejected:
                raw_answers.append({**raw, "reject_reason": reject_reason})
            continue
        if seconds is not None:
            raw["seconds"] = seconds = round(max(0.0, seconds - counted_seconds.get(key, 0.0)), 3)
        previous = newest_answers.get(key)
        if previous is not None and previous.word == word:
            is_counted = seconds is None or seconds <= SECONDS_TOLERANCE
            if is_counted or (previous.reject_reason and seconds == previous.seconds):
                continue
        raw_answers.append(raw)
    if raw_answers:
        store.receive(raw_answers, channel=channel)


CSV_REJECT_REASONS = ("duplicate", "malformed", "misspelt class", "unknown class")  # of rows


def read_csv_answers(path: Path, *, per_pixel: bool = False) -> list[CsvAnswer]:
    """Read the non-empty rows of a CSV file.

    Args:
        per_pixel: whether questions are about pixels and have ids ``KEY#Y,X``.

    Raises:
        UserError: The file is not UTF-8 text or lacks a column.
    """
    needed = ("key", "y", "x") if per_pixel else ("key",)
    is_named = path.stem.startswith("answers")  # answers-anna.csv
    default_annotator = path.stem.removeprefix("answers").strip("-_ ") if is_named else ""
    try:
        _check_encoding(path)
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
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: not CSV ({error}); save it as CSV UTF-8") from None


def _check_encoding(path: Path) -> None:
    """Raise an error that names all lines that are not UTF-8."""
    invalid = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            invalid.append(str(number))
    if invalid:
        lines = ", ".join(invalid[:MAX_LISTED_CLASSES]) + (", …" if len(invalid) > MAX_LISTED_CLASSES else "")
        raise UserError(f"{path} line {lines}: not UTF-8 text; save it as CSV UTF-8")


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
