"""A received answer and the meaning of its word."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ducats.utils.errors import UserError

VOID_WORD = "void"  # no class applies
UNSURE_WORD = "unsure"  # the annotator cannot decide
SKIP_WORD = "skip"  # postponed
UNDO_WORD = ""  # withdraws the annotator's earlier answer

REVIEW_CHANNEL = "review"  # channel of answers given in the page's review mode
SHARED_CHANNEL = "shared"  # channel of answers that were copied from another run

AnswerKind = Literal["class", "void", "new", "unsure", "skip", "undo", "invalid"]
_RESERVED_WORDS: Mapping[str, AnswerKind] = {
    VOID_WORD: "void",
    UNSURE_WORD: "unsure",
    SKIP_WORD: "skip",
    UNDO_WORD: "undo",
}

MAX_CLASS_NAME_LENGTH = 100
MAX_TEXT_LENGTH = 500  # characters of a word, a name or an external id; malformed answers are truncated to it


@dataclass(frozen=True)
class Answer:
    """One line of the answer log."""

    question: str  # id; empty if missing
    word: str  # class name, void, unsure, skip, or empty (withdrawn)
    kind: AnswerKind  # meaning of the word; invalid if it has none
    annotator: str
    received_at: str  # UTC, ISO 8601
    channel: str  # page, label-studio, or a file name
    round: int = 0  # 0 if the question is unknown
    seconds: float | None = None  # annotation time
    external_id: str | None = None  # id in another system, used to ignore duplicates
    reject_reason: str | None = None  # why it does not count; None if it counts

    def to_json(self) -> str:
        """Return one line of JSON, without fields that are None."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(fields, ensure_ascii=False)


def parse_word(word: str, classes: Sequence[str]) -> tuple[AnswerKind, str]:
    """Return the meaning of a word, and the word as spelt in ``classes``.

    >>> parse_word("Cat", ["cat", "dog"]), parse_word(" void", ["cat"]), parse_word("sea  cow", ["cat"])
    (('class', 'cat'), ('void', 'void'), ('new', 'sea cow'))
    """
    for candidate in (word, word.strip()):
        if candidate in classes:
            return "class", candidate
    folded = fold_word(word)
    matches = [name for name in classes if fold_word(name) == folded]
    if len(matches) == 1:
        return "class", matches[0]
    return (_RESERVED_WORDS[folded], folded) if folded in _RESERVED_WORDS else ("new", _tidy(word))


def fold_word(word: str) -> str:
    """Return a text that is equal for words that differ only in case, spaces or the encoding of accents."""
    return _tidy(word).casefold()


def _tidy(word: str) -> str:
    return " ".join(unicodedata.normalize("NFC", word).split())


def new_class_name(text: str) -> str:
    """Return the name of a new class, with single spaces; raise if no class can have it."""
    kind, name = parse_word(text, ())
    has_control = any(unicodedata.category(one) == "Cc" for one in name)
    is_visible = any(one.isprintable() for one in name)
    if kind != "new" or len(name) > MAX_CLASS_NAME_LENGTH or has_control or not is_visible:
        raise UserError(
            f"{name[:MAX_CLASS_NAME_LENGTH]!r} cannot be a class; choose a name of at most "
            f"{MAX_CLASS_NAME_LENGTH} visible characters other than void, unsure and skip"
        )
    return name


def malformed_answer(raw: Any, received_at: str, channel: str) -> Answer:
    """Return a rejected answer that records malformed input."""
    text = replace_surrogates(str(raw)[:MAX_TEXT_LENGTH])
    return Answer("", text, "invalid", "", received_at, channel, reject_reason="malformed")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 files cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")
