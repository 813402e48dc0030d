"""A received answer and the meaning of its word."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

VOID_WORD = "void"  # no class applies
UNSURE_WORD = "unsure"  # the annotator cannot decide
SKIP_WORD = "skip"  # postponed
UNDO_WORD = ""  # withdraws the annotator's earlier answer

Kind = Literal["class", "void", "new", "unsure", "skip", "undo", "none"]

LONGEST = 500  # characters of a word or a name; malformed answers are truncated to it


@dataclass(frozen=True)
class Answer:
    """One line of the answer log."""

    question: str  # id; empty if missing
    word: str  # class name, void, unsure, skip, or empty (withdrawn)
    kind: Kind  # meaning of the word; none if it has no meaning
    who: str
    when: str  # UTC, ISO 8601
    via: str  # page, label-studio, or a file name
    round: int = 0  # 0 if the question is unknown
    seconds: float | None = None  # annotation time
    ref: str | None = None  # id in another system, used to ignore duplicates
    refused: str | None = None  # why it does not count; None if it counts

    def line(self) -> str:
        """Return one line of JSON, without fields that are None."""
        kept = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(kept, ensure_ascii=False)

    @classmethod
    def read(cls, line: str | bytes) -> "Answer":
        """Parse a line; raise ValueError or TypeError if it is not an answer."""
        return cls(**json.loads(line))


def kind_of(word: str, classes: Sequence[str]) -> tuple[Kind, str]:
    """Return the meaning of a word, and the word as spelt in ``classes``.

    >>> kind_of("Cat", ["cat", "dog"]), kind_of(" void", ["cat"]), kind_of("cow", ["cat"])
    (('class', 'cat'), ('void', 'void'), ('new', 'cow'))
    """
    for said in (word, word.strip()):
        if said in classes:
            return "class", said
    word = word.strip()
    alike = [name for name in classes if name.strip().casefold() == word.casefold()]
    if len(alike) == 1:
        return "class", alike[0]
    special: Mapping[str, Kind] = {
        VOID_WORD: "void",
        UNSURE_WORD: "unsure",
        SKIP_WORD: "skip",
        UNDO_WORD: "undo",
    }
    low = word.casefold()
    return (special[low], low) if low in special else ("new", word)


def malformed(raw: Any, when: str, via: str) -> Answer:
    """Return a rejected answer that records malformed input."""
    return Answer("", clean(str(raw)[:LONGEST]), "none", "", when, via, refused="malformed")


def clean(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 files cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")
