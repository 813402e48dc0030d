"""Annotation stores with questions, without training."""

from pathlib import Path
from typing import Any

from PIL import Image

from ducats.annotation import AnnotationStore, Question, QuestionRound, RoundRules

CLASSES = ("cat", "dog", "cow")


def write_round(
    folder: Path, number: int = 1, keys: tuple[str, ...] = ("a", "b", "c"), **rules: Any
) -> AnnotationStore:
    """Add a round of image questions to the store in a folder; images beyond the tenth share a thumbnail."""
    store = AnnotationStore(folder)
    questions = []
    for index, key in enumerate(keys, start=1):
        name = f"thumbnails/{min(index, 10):04d}.png"
        path = store.round_folder(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if index <= 10:
            Image.new("RGB", (8, 6), (40 * index % 256, 90, 160)).save(path)
        questions.append(Question(index, key, key, name))
    QuestionRound.write(store.round_folder(number), RoundRules(number, CLASSES, **rules), questions)
    return store


def submit_answer(
    store: AnnotationStore, question: str, word: str, annotator: str = "anna", **more: Any
) -> str | None:
    """Submit one answer; return the reject reason."""
    answer = {"question": question, "word": word, "annotator": annotator, **more}
    return store.receive([answer], channel="test")[0].reject_reason
