"""Convert a round's questions to Label Studio tasks, one task per image."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.annotation import AnnotationStore, Question, QuestionRound
from ducats.annotation.label_studio import label_config, rle
from ducats.annotation.label_studio.task_images import TaskImage, TaskImageFactory
from ducats.annotation.question import area_mask
from ducats.runfolder.question_names import QUESTIONS


def run_fingerprint(store: AnnotationStore) -> str:
    """Return a fingerprint of a run's questions that identifies its tasks, also after the folder is moved."""
    first = store.round_folder(store.round_numbers()[0]) / QUESTIONS
    return hashlib.sha256(first.read_bytes()).hexdigest()[:16]


def group_by_image(question_round: QuestionRound) -> dict[str, list[Question]]:
    """Group a round's questions by image key, in order of selection."""
    groups: dict[str, list[Question]] = {}
    for question in question_round.questions:
        groups.setdefault(question.key, []).append(question)
    return groups


def make_task_meta(round_number: int, questions: Sequence[Question], fingerprint: str) -> dict[str, Any]:
    """Return the `meta` that identifies a task. Unlike `data`, it can be listed without the image."""
    # A copy of the run has the same fingerprint, but may query other pixels of the same image later.
    question_ids_digest = hashlib.sha256("\n".join(question.id for question in questions).encode("utf-8"))
    return {
        "run": fingerprint,
        "round": round_number,
        "key": questions[0].key,
        "asks": question_ids_digest.hexdigest()[:16],
    }


def read_task_meta(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `meta` of a task; empty if it has another format."""
    meta = task.get("meta")
    return meta if isinstance(meta, Mapping) else {}


def matches_questions(
    meta: Mapping[str, Any], round_number: int, questions: Sequence[Question], fingerprint: str
) -> bool:
    """Return whether a task with this `meta` holds these questions."""
    return all(
        meta.get(field) == value
        for field, value in make_task_meta(round_number, questions, fingerprint).items()
    )


def make_tasks(
    question_round: QuestionRound,
    groups: Sequence[Sequence[Question]],
    fingerprint: str,
    image_factory: TaskImageFactory,
    *,
    blind: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the tasks of some images, given by the questions of each; blind: without predictions."""
    for questions in groups:
        image = image_factory(question_round, questions[0])
        task: dict[str, Any] = {
            "data": _task_data(question_round, questions, image, blind=blind),
            "meta": make_task_meta(question_round.rules.round, questions, fingerprint),
        }
        if predictions := _predictions(question_round, questions, image, blind=blind):
            task["predictions"] = predictions
        yield task


def _task_data(
    question_round: QuestionRound, questions: Sequence[Question], image: TaskImage, *, blind: bool
) -> dict[str, Any]:
    first = questions[0]
    data: dict[str, Any] = {
        label_config.IMAGE_TAG_NAME: image.url,
        "round": question_round.rules.round,
        "key": first.key,
        "number": first.number,
        "questions": [question.id for question in questions],
    }
    if not blind and len(questions) == 1:
        uncertainties = {"u_dis": first.u_dis, "u_data": first.u_data}
        data.update({field: round(value, 6) for field, value in uncertainties.items() if value is not None})
    return data


def _predictions(
    question_round: QuestionRound, questions: Sequence[Question], image: TaskImage, *, blind: bool
) -> list[dict[str, Any]]:
    classes = question_round.rules.classes
    regions, scores = [], []
    for question in questions:
        guess = question.guess if question.guess in classes and not blind else None
        if guess is not None and question.probability is not None:
            scores.append(question.probability)
        if guess is None and question.area is None:
            continue  # an image without a prediction
        regions.append(_region(question_round, question, label_config.button_text(guess, classes), image))
    if not regions:
        return []
    score = {"score": round(sum(scores) / len(scores), 6)} if scores else {}
    return [{"model_version": model_version(question_round.rules.round), "result": regions, **score}]


def has_predictions(question_round: QuestionRound, *, blind: bool) -> bool:
    """Return whether a round's tasks have predictions: guesses, or marked areas without a label."""
    return any(
        question.area is not None or (question.guess in question_round.rules.classes and not blind)
        for question in question_round.questions
    )


def model_version(round_number: int) -> str:
    """Return the model version of a round's predictions."""
    return f"ducats-round-{round_number}"


def _region(question_round: QuestionRound, question: Question, text: str, image: TaskImage) -> dict[str, Any]:
    tag = label_config.control_tag(question_round.rules)
    result_type = label_config.RESULT_TYPE_BY_TAG[tag]
    region: dict[str, Any] = {
        "id": f"q{question.number}",
        "from_name": label_config.CONTROL_TAG_NAME,
        "to_name": label_config.IMAGE_TAG_NAME,
        "type": result_type,
        "value": {result_type: [text]},
    }
    area = question.area
    if area is None:
        return region
    size = {"original_width": image.width, "original_height": image.height, "image_rotation": 0}
    if tag == "KeyPointLabels":
        centre = {"x": (area.x + 0.5) / area.width * 100, "y": (area.y + 0.5) / area.height * 100}
        return {**region, **size, "value": {**centre, "width": 1.0, result_type: [text]}}
    mask = resize_mask(area_mask(area), image.height, image.width)
    return {**region, **size, "value": {"format": "rle", "rle": rle.encode_mask(mask), result_type: [text]}}


def resize_mask(mask: NDArray[np.bool_], height: int, width: int) -> NDArray[np.bool_]:
    """Resize a mask by nearest neighbour at pixel centres."""
    if mask.shape == (height, width):
        return mask
    rows = ((np.arange(height) + 0.5) * mask.shape[0] / height).astype(np.int64)
    columns = ((np.arange(width) + 0.5) * mask.shape[1] / width).astype(np.int64)
    resized: NDArray[np.bool_] = mask[rows[:, None], columns[None, :]]
    return resized
