"""JSON payloads sent to the page: a round and its questions."""

import string
from collections.abc import Sequence
from typing import Any

from ducats.annotation import Question, QuestionRound
from ducats.labelling.page.explanation import explain_pick, uncertainty_hints
from ducats.labelling.page.pictures import is_gone
from ducats.labelling.page.progress import Progress
from ducats.palette import class_colours

COMMANDS = "agnosux"  # all in the segment, grid, new class, whole image, skip, undo, none of these
KEYS = "123456789" + "".join(letter for letter in string.ascii_lowercase if letter not in COMMANDS)
TOGETHER = 200  # questions answered at once


def keys(names: Sequence[str]) -> list[str | None]:
    """Return a key for each class: its name if that is a key, else a free one; all None if there are too few.

    >>> keys(["road", "car"]), keys(["0", "1", "2"]), keys(["c", "b", "road"])
    (['1', '2'], ['0', '1', '2'], ['c', 'b', '1'])
    """
    own = [name.lower() if name.lower() in {*KEYS, "0"} else None for name in names]
    others = iter([key for key in KEYS if key not in own])
    if len(set(own) - {None}) < len([key for key in own if key]):  # names that differ only in case
        own, others = [None] * len(names), iter(KEYS)
    found = [key or next(others, None) for key in own]
    return found if None not in found else [None] * len(found)


def terms(sheet: QuestionRound) -> dict[str, Any]:
    """Return the round's settings: unit, classes, keys and colours."""
    stated, names = sheet.rules, sheet.rules.classes
    taken = keys(names)
    return {
        "round": stated.round,
        "unit": stated.unit,
        "newClasses": stated.allow_new_classes,
        "seconds": stated.max_seconds,
        "voidKey": "x" if "0" in taken else "0",
        "classes": [
            {"name": name, "key": key, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
            for name, key, colour in zip(names, taken, class_colours(names), strict=True)
        ],
    }


def question(progress: Progress, asked: Question, who: str, *, blind: bool) -> dict[str, Any]:
    """Return one question as one annotator sees it."""
    standing = progress.standing(asked.id)
    votes = standing.votes if standing is not None else ()
    mine = next((vote.word for vote in votes if vote.annotator == who), None)
    unsure = standing is not None and who in standing.unsure_annotators
    told: dict[str, Any] = {
        "id": asked.id,
        "number": asked.number,
        "mine": "unsure" if unsure else mine,
        "gone": is_gone(asked),
        "pixels": None if asked.area is None else sum(length for _, length in asked.area.runs),
        "together": [one.id for one in progress.together(who, asked, TOGETHER - 1)],
        "why": explain_pick(asked, progress.sheet.rules, blind=blind),
    }
    disputed = standing is not None and standing.state == "disputed"
    if disputed and not (blind and mine is None):
        told["votes"] = [{"who": vote.annotator, "word": vote.word} for vote in votes]
    if not blind:
        told |= {
            "guess": asked.guess,
            "probability": asked.probability,
            "hints": uncertainty_hints(asked, progress.sheet.rules),
        }
    return told


def questions(
    progress: Progress, asked: Sequence[Question], who: str, *, blind: bool
) -> list[dict[str, Any]]:
    """Return several questions as one annotator sees them."""
    return [question(progress, one, who, blind=blind) for one in asked]
