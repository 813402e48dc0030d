"""Convert a round's questions to Label Studio tasks, one task per image."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.annotation import AnnotationStore, Question, QuestionArea, QuestionRound
from ducats.labelling.studio import layout, rle
from ducats.labelling.studio.shown import Show, Shown


def mark(desk: AnnotationStore) -> str:
    """Return a fingerprint of a run's questions that identifies its tasks, also after the folder is moved."""
    first = desk.round_folder(desk.round_numbers()[0]) / "questions.jsonl"
    return hashlib.sha256(first.read_bytes()).hexdigest()[:16]


def by_image(sheet: QuestionRound) -> dict[str, list[Question]]:
    """Group a round's questions by image key, in order of selection."""
    groups: dict[str, list[Question]] = {}
    for question in sheet.questions:
        groups.setdefault(question.key, []).append(question)
    return groups


def marks(number: int, questions: Sequence[Question], name: str) -> dict[str, Any]:
    """Return the `meta` that identifies a task. Unlike `data`, it can be listed without the image.

    Args:
        questions: all questions of the task.
        name: the run's ``mark``.
    """
    # A copy of the run has the same mark, but may query other pixels of the same image later.
    asked = hashlib.sha256("\n".join(question.id for question in questions).encode("utf-8"))
    return {"run": name, "round": number, "key": questions[0].key, "asks": asked.hexdigest()[:16]}


def marks_on(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `meta` of a task; empty if it has another format."""
    found = task.get("meta")
    return found if isinstance(found, Mapping) else {}


def of_these(own: Mapping[str, Any], number: int, questions: Sequence[Question], name: str) -> bool:
    """Return whether a task with this `meta` holds these questions."""
    return all(own.get(field) == value for field, value in marks(number, questions, name).items())


def tasks(
    sheet: QuestionRound, groups: Sequence[Sequence[Question]], name: str, show: Show, *, blind: bool
) -> Iterator[dict[str, Any]]:
    """Yield the tasks of some images.

    Args:
        groups: questions of each image.
        name: the run's ``mark``.
        blind: leave out the model's predictions.
    """
    xml = layout.config(sheet.rules)
    for questions in groups:
        shown = show(sheet, questions[0])
        task: dict[str, Any] = {
            "data": _data(sheet, questions, shown, blind=blind),
            "meta": marks(sheet.rules.round, questions, name),
        }
        if predictions := _predictions(sheet, questions, shown, blind=blind):
            task["predictions"] = predictions
        layout.check(task, xml)
        yield task


def _data(
    sheet: QuestionRound, questions: Sequence[Question], shown: Shown, *, blind: bool
) -> dict[str, Any]:
    first = questions[0]
    data: dict[str, Any] = {
        layout.PICTURE: shown.address,
        "round": sheet.rules.round,
        "key": first.key,
        "number": first.number,
        "questions": [question.id for question in questions],
    }
    if not blind and len(questions) == 1:
        known = {"u_dis": first.u_dis, "u_data": first.u_data}
        data.update({field: round(value, 6) for field, value in known.items() if value is not None})
    return data


def _predictions(
    sheet: QuestionRound, questions: Sequence[Question], shown: Shown, *, blind: bool
) -> list[dict[str, Any]]:
    classes = sheet.rules.classes
    regions, scores = [], []
    for question in questions:
        guess = question.guess if question.guess in classes and not blind else None
        if guess is not None and question.probability is not None:
            scores.append(question.probability)
        if guess is None and question.area is None:
            continue  # an image without a prediction
        regions.append(_region(sheet, question, layout.text_for(guess, classes), shown))
    if not regions:
        return []
    score = {"score": round(sum(scores) / len(scores), 6)} if scores else {}
    return [{"model_version": version(sheet.rules.round), "result": regions, **score}]


def prelabelled(sheet: QuestionRound, *, blind: bool) -> bool:
    """Return whether a round's tasks have predictions: guesses, or marked areas without a label."""
    return any(
        one.area is not None or (one.guess in sheet.rules.classes and not blind) for one in sheet.questions
    )


def version(number: int) -> str:
    """Return the model version of a round's predictions."""
    return f"ducats-round-{number}"


def _region(sheet: QuestionRound, question: Question, text: str, shown: Shown) -> dict[str, Any]:
    tag = layout.tool(sheet.rules)
    kind = layout.VALUES[tag]
    region: dict[str, Any] = {
        "id": f"q{question.number}",
        "from_name": layout.CONTROL,
        "to_name": layout.PICTURE,
        "type": kind,
        "value": {kind: [text]},
    }
    place = question.area
    if place is None:
        return region
    size = {"original_width": shown.width, "original_height": shown.height, "image_rotation": 0}
    if tag == "KeyPointLabels":
        middle = {"x": (place.x + 0.5) / place.width * 100, "y": (place.y + 0.5) / place.height * 100}
        return {**region, **size, "value": {**middle, "width": 1.0, kind: [text]}}
    mask = stretched(mask_of(place), shown.height, shown.width)
    return {**region, **size, "value": {"format": "rle", "rle": rle.encode(mask), kind: [text]}}


def mask_of(place: QuestionArea) -> NDArray[np.bool_]:
    """Return the mask of a question's pixels in the grid."""
    flat = np.zeros(place.height * place.width, dtype=np.bool_)
    for start, length in place.runs:
        flat[start : start + length] = True
    return flat.reshape(place.height, place.width)


def stretched(mask: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Resize a mask by nearest neighbour at pixel centres."""
    if mask.shape == (height, width):
        return mask
    rows = ((np.arange(height) + 0.5) * mask.shape[0] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * mask.shape[1] / width).astype(np.int64)
    found: NDArray[np.bool_] = mask[rows[:, None], columns[None, :]]
    return found
