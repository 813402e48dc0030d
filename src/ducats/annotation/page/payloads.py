"""JSON payloads sent to the page: a round and its questions."""

import string
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ducats.annotation import Question, QuestionRound
from ducats.annotation.page.explanation import explain_pick
from ducats.annotation.page.live import LearningSummary
from ducats.annotation.page.question_images import is_original_missing
from ducats.annotation.page.round_progress import RoundProgress
from ducats.utils.palette import class_colours

COMMAND_KEYS = "agnorsux"  # all in segment, grid, new class, whole image, review, skip, undo, none of these
CLASS_KEYS = "123456789" + "".join(letter for letter in string.ascii_lowercase if letter not in COMMAND_KEYS)


def assign_keys(classes: Sequence[str]) -> list[str | None]:
    """Return a key for each class: its name if that is a key, else a free one; all None if there are too few.

    >>> assign_keys(["road", "car"]), assign_keys(["0", "1", "2"]), assign_keys(["c", "b", "road"])
    (['1', '2'], ['0', '1', '2'], ['c', 'b', '1'])
    """
    own = [name.lower() if name.lower() in {*CLASS_KEYS, "0"} else None for name in classes]
    others = iter([key for key in CLASS_KEYS if key not in own])
    if len(set(own) - {None}) < len([key for key in own if key]):  # names that differ only in case
        own, others = [None] * len(classes), iter(CLASS_KEYS)
    assigned = [key or next(others, None) for key in own]
    return assigned if None not in assigned else [None] * len(assigned)


def round_payload(question_round: QuestionRound) -> dict[str, Any]:
    """Return the round's settings: unit, classes, keys and colours."""
    rules, names = question_round.rules, question_round.rules.classes
    assigned = assign_keys(names)
    return {
        "round": rules.round,
        "unit": rules.unit,
        "newClasses": rules.allow_new_classes or rules.live,
        "maxSeconds": rules.max_seconds,
        "voidKey": "x" if "0" in assigned else "0",
        "classes": [
            {"name": name, "key": key, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
            for name, key, colour in zip(names, assigned, class_colours(names), strict=True)
        ],
    }


def learning_payload(summary: LearningSummary, *, blind: bool) -> dict[str, Any]:
    """Return what the model has learnt so far; a blind page does not show how good its guesses are."""
    payload = asdict(summary)
    if blind:
        payload |= {"recent": 0, "recent_right": 0, "accuracy": ""}
    return payload


def is_acceptable(question: Question, accept_threshold: float) -> bool:
    """Return whether Enter may accept the model's guess."""
    return question.guess is not None and (question.probability or 0.0) >= accept_threshold


def question_payload(
    progress: RoundProgress, question: Question, annotator: str, *, blind: bool, accept_threshold: float
) -> dict[str, Any]:
    """Return one question as one annotator sees it."""
    status = progress.status(question.id)
    votes = status.votes if status is not None else ()
    mine = next((vote.word for vote in votes if vote.annotator == annotator), None)
    unsure = status is not None and annotator in status.unsure_annotators
    payload: dict[str, Any] = {
        "id": question.id,
        "number": question.number,
        "mine": "unsure" if unsure else mine,
        "gone": is_original_missing(question),
        "pixels": None if question.area is None else sum(length for _, length in question.area.runs),
        "together": [one.id for one in progress.same_segment(annotator, question)],
        "why": explain_pick(question, progress.question_round.rules, blind=blind),
    }
    disputed = status is not None and status.state == "disputed"
    if disputed and mine is not None:  # who has not answered yet should answer independently
        payload["votes"] = [{"annotator": vote.annotator, "word": vote.word} for vote in votes]
    if not blind:
        payload |= {
            "guess": question.guess,
            "probability": question.probability,
            "acceptable": is_acceptable(question, accept_threshold),
        }
    return payload
