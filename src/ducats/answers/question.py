"""Questions to annotators, and rounds of questions."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ducats.errors import UserError
from ducats.files import write_atomically, write_text_atomically

MOST = 100_000  # questions in a round; larger rounds are answered with label PNGs only


@dataclass(frozen=True)
class Place:
    """Pixels of an image that a question is about, on the grid of the labels."""

    y: int  # of the central pixel
    x: int
    height: int  # of the grid
    width: int
    runs: tuple[tuple[int, int], ...]  # all pixels: first position (y * width + x) and length, ascending


@dataclass(frozen=True)
class Question:
    """One question: an image, or a unit of its pixels."""

    number: int  # from 1 in each round, in the order of selection
    id: str  # key of the image; KEY#Y,X for pixels
    key: str
    picture: str  # path relative to the round's folder
    file: str = ""  # path of the image's own file, if any
    place: Place | None = None
    guess: str | None = None  # class predicted at the time of selection
    probability: float | None = None
    u_dis: float | None = None
    u_data: float | None = None
    u_dis_above: float | None = None  # share of the pool (per-pixel labels: of the image) with a lower value
    u_data_above: float | None = None
    segment: int | None = None  # questions about one image with the same number lie in one segment

    def line(self) -> str:
        """Return one line of JSON, without empty fields."""
        said = {k: v for k, v in asdict(self).items() if v is not None and (v or k != "file")}
        return json.dumps(said, ensure_ascii=False)

    @classmethod
    def read(cls, line: str | bytes) -> "Question":
        """Parse a line."""
        raw: dict[str, Any] = json.loads(line)
        if place := raw.get("place"):
            raw["place"] = Place(**{**place, "runs": tuple((int(a), int(b)) for a, b in place["runs"])})
        return cls(**raw)


@dataclass(frozen=True)
class Terms:
    """Settings that apply to all questions of a round."""

    round: int
    classes: tuple[str, ...]
    rule: str = "first"  # see ``rules.RULES``
    people: int = 1  # number of different annotators that each question needs
    unsure: Literal["again", "void"] = "again"  # ask someone else, or label VOID
    new_classes: bool = False  # whether unknown class names are accepted, as VOID
    unit: str = "image"  # image, pixel, region or superpixel
    query: str = ""  # name of the query
    why: str = ""  # summary of the query
    seconds: float | None = None  # limit on the annotation time, after which the round closes


@dataclass(frozen=True)
class Sheet:
    """The questions of one round, stored in its folder."""

    folder: Path
    terms: Terms
    questions: tuple[Question, ...] = field(repr=False)

    @cached_property
    def by_id(self) -> dict[str, Question]:
        """Questions by id."""
        return {question.id: question for question in self.questions}

    @classmethod
    def write(cls, folder: Path, terms: Terms, questions: Iterable[Question]) -> None:
        """Write a round. ``terms.json`` is written last; its presence marks the round as complete."""
        lines = [question.line() + "\n" for question in questions]
        write_atomically(folder / "questions.jsonl", lambda file: file.write("".join(lines).encode("utf-8")))
        text = json.dumps(asdict(terms), ensure_ascii=False, indent=1) + "\n"
        write_text_atomically(folder / "terms.json", text)

    @classmethod
    def read(cls, folder: Path) -> "Sheet":
        """Read a round from its folder."""
        try:
            raw = json.loads((folder / "terms.json").read_text(encoding="utf-8"))
            terms = Terms(**{**raw, "classes": tuple(raw["classes"])})
            lines = (folder / "questions.jsonl").read_bytes().splitlines()
            return cls(folder, terms, tuple(map(Question.read, lines)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"the questions in {folder} are corrupt ({type(error).__name__}: {error}); restore "
                "terms.json and questions.jsonl from a backup, or delete the folder to write new questions"
            ) from error


def runs_of(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Group positions into runs of consecutive values: (first, length).

    >>> runs_of([7, 3, 4, 5])
    ((3, 3), (7, 1))
    """
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return tuple(runs)
