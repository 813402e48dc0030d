"""Questions to annotators, and rounds of questions."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ducats.runfolder import checksums
from ducats.runfolder.question_names import QUESTIONS, RULES
from ducats.utils.errors import UserError
from ducats.utils.typed_json import parse_json

if TYPE_CHECKING:  # keeps `--help` fast
    import numpy as np

MAX_LISTED_QUESTIONS = 100_000  # questions in a round; larger rounds are answered with label PNGs only


@dataclass(frozen=True)
class QuestionArea:
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
    image_path: str  # path relative to the round's folder
    original_path: str = ""  # path of the image's own file, if any
    area: QuestionArea | None = None
    guess: str | None = None  # class predicted at the time of selection
    probability: float | None = None
    u_dis: float | None = None
    u_data: float | None = None
    # Share of the pool (per-pixel labels: of the image) with a lower value.
    u_dis_quantile: float | None = None
    u_data_quantile: float | None = None
    segment: int | None = None  # questions about one image with the same number lie in one segment
    image_digest: str = ""  # of the image's content: equal in all runs that ask about this image

    def to_json(self) -> str:
        """Return one line of JSON, without empty fields."""
        optional = ("original_path", "image_digest")
        fields = {k: v for k, v in asdict(self).items() if v is not None and (v or k not in optional)}
        return json.dumps(fields, ensure_ascii=False)


@dataclass(frozen=True)
class RoundRules:
    """Settings that apply to all questions of a round."""

    round: int
    classes: tuple[str, ...]
    rule: Literal["first", "newest", "majority", "unanimous", "weighted"] = "first"  # see ``rules``
    min_annotators: int = 1  # number of different annotators that each question needs
    on_unsure: Literal["ask_another", "void"] = "ask_another"  # ask someone else, or label VOID
    allow_new_classes: bool = False  # whether answers may name new classes
    unit: str = "image"  # image, pixel, region or superpixel
    query: str = ""  # name, shown to annotators
    query_summary: str = ""  # why a sample is picked, shown to annotators; may contain "{unit}"
    explained_by: tuple[str, ...] = ()  # uncertainties that explain a pick instead: u_dis, u_data
    max_seconds: float | None = None  # limit on the annotation time, after which the round closes
    # Live labelling: every open image may be answered, in any order, and answers may name new classes.
    live: bool = False
    overlap: float = 0.0  # share of the questions that need answers from two annotators
    # With the rule ``weighted``: a question is settled by this probability, or by so many annotators.
    min_probability: float = 0.9
    max_annotators: int = 3

    def write(self, folder: Path) -> None:
        """Write the rules into the folder of their round."""
        fields = asdict(self)
        for name in ("live", "overlap", "min_probability", "max_annotators"):
            if fields[name] == getattr(type(self), name):  # the default
                del fields[name]
        checksums.write_text(folder / RULES, json.dumps(fields, ensure_ascii=False, indent=1) + "\n")


@dataclass(frozen=True)
class QuestionRound:
    """The questions of one round, stored in its folder."""

    folder: Path
    rules: RoundRules
    questions: tuple[Question, ...] = field(repr=False)

    @cached_property
    def by_id(self) -> dict[str, Question]:
        """Questions by id."""
        return {question.id: question for question in self.questions}

    @cached_property
    def shared_questions(self) -> frozenset[str]:
        """Ids of the questions that need two annotators: a random share, drawn by their names alone."""
        n_shared = math.ceil(self.rules.overlap * len(self.questions) - 1e-9)
        ids = sorted(self.by_id, key=lambda one: hashlib.sha256(one.encode("utf-8", "replace")).digest())
        return frozenset(ids[:n_shared])

    def rules_for(self, question: str) -> RoundRules:
        """Return the rules for one question: a shared one needs two annotators who agree, or a majority."""
        return self._shared_rules if question in self.shared_questions else self.rules

    @cached_property
    def _shared_rules(self) -> RoundRules:
        rule = "majority" if self.rules.rule in ("first", "newest") else self.rules.rule
        return replace(self.rules, rule=rule, min_annotators=max(2, self.rules.min_annotators))

    def with_words(self, translate: Callable[[str], str]) -> "QuestionRound":
        """Return the round with other names of its classes; some may become the same."""
        classes = tuple(dict.fromkeys(map(translate, self.rules.classes)))
        questions = tuple(
            one if one.guess is None else replace(one, guess=translate(one.guess)) for one in self.questions
        )
        return replace(self, rules=replace(self.rules, classes=classes), questions=questions)

    @classmethod
    def write(cls, folder: Path, rules: RoundRules, questions: Iterable[Question]) -> None:
        """Write a round. ``rules.json`` is written last; its presence marks the round as complete."""
        lines = [question.to_json() + "\n" for question in questions]
        checksums.write(folder / QUESTIONS, lambda file: file.write("".join(lines).encode("utf-8")))
        rules.write(folder)

    @classmethod
    def read(cls, folder: Path) -> "QuestionRound":
        """Read a round from its folder."""
        checksums.verify(folder / RULES)
        checksums.verify(folder / QUESTIONS)
        try:
            rules = parse_json(RoundRules, (folder / RULES).read_bytes())
            lines = (folder / QUESTIONS).read_bytes().splitlines()
            return cls(folder, rules, tuple(parse_json(Question, line) for line in lines))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the questions in {folder} are corrupt ({type(error).__name__}: {reason}); restore "
                f"{RULES} and {QUESTIONS} from a backup, or delete the folder to write new questions"
            ) from error


def area_mask(*areas: QuestionArea) -> "np.typing.NDArray[np.bool_]":
    """Return a ``(height, width)`` mask of the grid, True at the pixels of any of the areas."""
    import numpy as np

    mask = np.zeros(areas[0].height * areas[0].width, np.bool_)
    for area in areas:
        for start, length in area.runs:
            mask[start : start + length] = True
    return mask.reshape(areas[0].height, areas[0].width)


def consecutive_runs(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Group positions into runs of consecutive values: (first, length).

    >>> consecutive_runs([7, 3, 4, 5])
    ((3, 3), (7, 1))
    """
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return tuple(runs)
