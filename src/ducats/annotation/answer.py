"""A received answer and the meaning of its word."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

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

    >>> parse_word("Cat", ["cat", "dog"]), parse_word(" void", ["cat"]), parse_word("cow", ["cat"])
    (('class', 'cat'), ('void', 'void'), ('new', 'cow'))
    """
    for candidate in (word, word.strip()):
        if candidate in classes:
            return "class", candidate
    word = word.strip()
    matches = [name for name in classes if name.strip().casefold() == word.casefold()]
    if len(matches) == 1:
        return "class", matches[0]
    lowered = word.casefold()
    return (_RESERVED_WORDS[lowered], lowered) if lowered in _RESERVED_WORDS else ("new", word)


def malformed_answer(raw: Any, received_at: str, channel: str) -> Answer:
    """Return a rejected answer that records malformed input."""
    text = replace_surrogates(str(raw)[:MAX_TEXT_LENGTH])
    return Answer("", text, "invalid", "", received_at, channel, reject_reason="malformed")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 files cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")
