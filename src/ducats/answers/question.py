"""A question, and a round of them: what people need to see and what they may answer."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ducats.errors import UserError
from ducats.files import write_atomically, write_text_atomically

MOST = 100_000  # questions of a round that are written one by one; beyond, label PNGs answer


@dataclass(frozen=True)
class Place:
    """Which pixels of an image a question is about, in the grid in which they are bought."""

    y: int  # of a pixel in the middle
    x: int
    height: int  # of the grid
    width: int
    runs: tuple[tuple[int, int], ...]  # all its pixels: first position (y * width + x) and length, rising


@dataclass(frozen=True)
class Question:
    """What one person is asked at once: an image, or some pixels of one."""

    number: int  # 1 for the first of its round, in the order of choosing
    id: str  # the image's key; of pixels KEY#Y,X
    key: str
    picture: str  # below the round's folder
    file: str = ""  # the image's own, if it has one
    place: Place | None = None
    guess: str | None = None  # the model's, when it asked
    probability: float | None = None
    u_dis: float | None = None
    u_data: float | None = None
    u_dis_above: float | None = None  # share of the pool (of pixels: of the image) with a lower one
    u_data_above: float | None = None
    segment: int | None = None  # questions of one image with the same number lie in one segment

    def line(self) -> str:
        """As JSON, without what says nothing."""
        said = {k: v for k, v in asdict(self).items() if v is not None and (v or k != "file")}
        return json.dumps(said, ensure_ascii=False)

    @classmethod
    def read(cls, line: str | bytes) -> "Question":
        """From its line."""
        raw: dict[str, Any] = json.loads(line)
        if place := raw.get("place"):
            raw["place"] = Place(**{**place, "runs": tuple((int(a), int(b)) for a, b in place["runs"])})
        return cls(**raw)


@dataclass(frozen=True)
class Terms:
    """What holds for all questions of a round."""

    round: int
    classes: tuple[str, ...]
    rule: str = "first"  # see ``rules.RULES``
    people: int = 1  # answers that a question needs, by different people
    unsure: Literal["again", "void"] = "again"  # what an unsure answer comes to
    new_classes: bool = False  # whether a name that is no class is kept, as void, or refused
    unit: str = "image"  # what a question is about: image, pixel, region, superpixel
    query: str = ""  # who chose, and in which words
    why: str = ""
    seconds: float | None = None  # of people, after which the round ends with what is there; None: no bound


@dataclass(frozen=True)
class Sheet:
    """A round's questions, as they lie in its folder."""

    folder: Path
    terms: Terms
    questions: tuple[Question, ...] = field(repr=False)

    @cached_property
    def by_id(self) -> dict[str, Question]:
        """The questions by their ids."""
        return {question.id: question for question in self.questions}

    @classmethod
    def write(cls, folder: Path, terms: Terms, questions: Iterable[Question]) -> None:
        """Lay a round out; its terms come last: where they are, the round is complete."""
        lines = [question.line() + "\n" for question in questions]
        write_atomically(folder / "questions.jsonl", lambda file: file.write("".join(lines).encode("utf-8")))
        text = json.dumps(asdict(terms), ensure_ascii=False, indent=1) + "\n"
        write_text_atomically(folder / "terms.json", text)

    @classmethod
    def read(cls, folder: Path) -> "Sheet":
        """A round as it was laid out."""
        try:
            raw = json.loads((folder / "terms.json").read_text(encoding="utf-8"))
            terms = Terms(**{**raw, "classes": tuple(raw["classes"])})
            lines = (folder / "questions.jsonl").read_bytes().splitlines()
            return cls(folder, terms, tuple(map(Question.read, lines)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"the questions in {folder} cannot be read ({type(error).__name__}: {error}): restore "
                "terms.json and questions.jsonl from a copy, or remove the folder to have it made anew"
            ) from error


def runs_of(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Positions in runs of consecutive ones.

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
