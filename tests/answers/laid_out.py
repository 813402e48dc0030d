"""Annotation stores with questions, without training."""

from pathlib import Path
from typing import Any

from PIL import Image

from ducats.answers import Desk, Question, Sheet, Terms

CLASSES = ("cat", "dog", "cow")


def lay(folder: Path, number: int = 1, keys: tuple[str, ...] = ("a", "b", "c"), **terms: Any) -> Desk:
    """Add a round of image questions to the store in a folder; images beyond the tenth share a thumbnail."""
    desk = Desk(folder)
    questions = []
    for place, key in enumerate(keys, start=1):
        name = f"thumbnails/{min(place, 10):04d}.png"
        path = desk.home(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if place <= 10:
            Image.new("RGB", (256, 192), (40 * place % 256, 90, 160)).save(path)
        questions.append(Question(place, key, key, name))
    Sheet.write(desk.home(number), Terms(number, CLASSES, **terms), questions)
    return desk


def say(desk: Desk, question: str, word: str, who: str = "anna", **more: Any) -> str | None:
    """Submit one answer; return the reason for refusal."""
    answer = {"question": question, "word": word, "who": who, **more}
    return desk.receive([answer], via="test")[0].refused
