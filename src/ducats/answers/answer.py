"""One received answer: who said what of which question, when, and whether it counts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

VOID_WORD = "void"  # no class applies
UNSURE_WORD = "unsure"  # the person cannot tell
SKIP_WORD = "skip"  # not now
UNDO_WORD = ""  # what this person said before is withdrawn

Kind = Literal["class", "void", "new", "unsure", "skip", "undo", "none"]

LONGEST = 500  # characters of a word or a name; of what makes no sense the rest is not kept


@dataclass(frozen=True)
class Answer:
    """A line of the book."""

    question: str  # its id; empty if the answer did not say
    word: str  # a class's name, void, unsure, skip, or empty: withdrawn
    kind: Kind  # what the word means; none if it means nothing
    who: str
    when: str  # UTC, ISO 8601
    via: str  # how it came: page, label-studio, a file's name
    round: int = 0  # 0 if the question is unknown
    seconds: float | None = None  # that the person took
    ref: str | None = None  # its name in another system, by which it is not taken twice
    refused: str | None = None  # why it does not count

    def line(self) -> str:
        """As JSON, without what says nothing."""
        kept = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(kept, ensure_ascii=False)

    @classmethod
    def read(cls, line: str | bytes) -> "Answer":
        """From its line; a ValueError or TypeError if it is none."""
        return cls(**json.loads(line))


def kind_of(word: str, classes: Sequence[str]) -> tuple[Kind, str]:
    """What a word means, and the word as the classes spell it.

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
    """A record of something that is no answer."""
    return Answer("", clean(str(raw)[:LONGEST]), "none", "", when, via, refused="malformed")


def clean(text: str) -> str:
    """The text without halves of characters, which JSON can bring and no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
