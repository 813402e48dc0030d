"""The labelling page with a model that learns from each answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_browser
import pytest
from page_browser import Page, Server, needs_a_browser
from page_client import client, next_ids, post, state
from page_rounds import image_questions
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from starlette.testclient import TestClient

from ducats.annotation import AnnotationStore, Question
from ducats.annotation.page.live import ClassSummary, LearningSummary

chromium, page = page_browser.chromium, page_browser.page


class EchoModel:
    """Guesses the class of the newest answer, and asks the last questions first."""

    def __init__(self, store: AnnotationStore, advice: str = "") -> None:
        self.store, self.advice = store, advice
        self.n_notified = 0

    def _words(self) -> dict[str, str]:
        return {key: one.word for key, one in self.store.statuses(1).items() if one.word is not None}

    def first_questions(self) -> Sequence[int]:
        return range(len(self.store.question_round(1).questions) - 1, -1, -1)

    def with_hints(self, question: Question) -> Question:
        words = [one.word for one in self.store.answers() if one.kind == "class"]
        return replace(question, guess=words[-1], probability=0.9) if words else question

    def summary(self) -> LearningSummary:
        words, classes = self._words(), self.store.question_round(1).rules.classes
        n_open = len(self.store.question_round(1).questions) - len(words)
        per_class = [
            ClassSummary(
                name, list(words.values()).count(name), n_open if words else 0, 0.9 if words else None
            )
            for name in classes
        ]
        return LearningSummary(
            len(words),
            n_open + len(words),
            n_open if words else 0,
            3,
            4,
            tuple(per_class),
            self.advice,
            accuracy="87.0 %",
        )

    def notify(self) -> None:
        self.n_notified += 1

    def wait_until_current(self, timeout: float) -> None:
        assert timeout < 1


class SlowModel(EchoModel):
    """Has not learnt from an answer when the reply to it is sent."""

    n_replied = 0  # labels when a summary was last asked for

    def summary(self) -> LearningSummary:
        summary, before = super().summary(), self.n_replied
        self.n_replied = summary.labels
        return replace(summary, labels=min(before, summary.labels), recent=summary.labels * (before > 0))


def open_live(run: Path, count: int = 6, **page_options: Any) -> tuple[EchoModel, TestClient]:
    model = EchoModel(image_questions(run, count, guesses=(None,), live=True))  # type: ignore[arg-type]
    return model, client(run, live=model, **page_options)


def test_the_model_orders_questions_and_knows_the_latest_answer(tmp_path: Path) -> None:
    model, page = open_live(tmp_path)
    first = state(page)
    assert next_ids(first) == ["r1/6", "r1/5"]
    assert first["next"][0]["guess"] is None
    reply = post(page, ("r1/6", "green"))
    assert model.n_notified == 1
    assert next_ids(reply) == ["r1/5", "r1/4"]
    assert [one["guess"] for one in reply["next"]] == ["green", "green"]
    assert (reply["live"]["labels"], reply["live"]["recent_right"]) == (1, 3)
    assert next_ids(state(page, "bob")) == ["r1/3", "r1/2"]  # the others are held by Ada


def test_a_new_class_is_added_for_everyone(tmp_path: Path) -> None:
    model, page = open_live(tmp_path)
    reply = post(page, ("r1/6", " purple "))
    assert not reply["rejected"]
    assert [one["name"] for one in reply["rules"]["classes"]][-1] == "purple"
    reply = post(page, ("r1/5", "Purple"), annotator="bob")
    assert model.store.status("r1/5").word == "purple"
    assert len(reply["rules"]["classes"]) == 4
    assert state(page)["stamp"] == reply["stamp"]  # images stay cached


@pytest.mark.parametrize("word", ["x" * 101, "", "skip", "unsure"])
def test_other_words_add_no_class(tmp_path: Path, word: str) -> None:
    model, page = open_live(tmp_path)
    post(page, ("r1/6", word))
    assert len(model.store.question_round(1).rules.classes) == 3
    assert model.store.status("r1/6").word is None


def test_the_grid_groups_all_images_by_the_current_guess(tmp_path: Path) -> None:
    _, page = open_live(tmp_path)
    post(page, ("r1/6", "blue"))
    grid = page.get("/api/grid", params={"annotator": "ada", "guess": ""}).json()
    assert grid["guesses"] == [["blue", 5]]
    post(page, *((one["id"], "blue") for one in grid["questions"]))
    assert state(page)["state"] == "complete"


def test_a_blind_page_shows_no_guesses(tmp_path: Path) -> None:
    _, page = open_live(tmp_path, blind=True)
    reply = post(page, ("r1/6", "blue"))
    assert "guess" not in reply["next"][0]
    assert reply["live"]["recent"] == 0


@needs_a_browser
def test_label_live_in_a_browser(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 8, guesses=(None,), live=True)  # type: ignore[arg-type]
    server = Server(tmp_path, live=EchoModel(store, advice="More answers bring little now."))
    try:
        page.open(server)
        assert page.wait_for_question() == "r1/8"
        assert "Nothing yet" in page.text("learnt-text")
        page.answer("2")
        page.wait_for_question("r1/7")
        assert "90% sure" in page.text("guess")
        assert "right for 3 of the last 4 answers" in page.text("learnt-text")
        assert "87.0 %" in page.text("learnt-text")
        assert "bring little" in page.text("advice")
        page.press("n")
        page.browser.find_element(By.ID, "name-of-class").send_keys("purple", Keys.ENTER)
        page.wait_for_question("r1/6")
        page.wait(lambda: len(page.elements("#classes button")) == 4)
        page.answer("4")
        page.wait_for_question("r1/5")
        page.press("u")
        page.wait_for_question("r1/6")
        page.answer("1")
        page.wait_until_saved()
        assert [store.status(f"r1/{n}").word for n in (8, 7, 6)] == ["green", "purple", "red"]
        page.press("g")
        page.wait_for_state("grid")
        page.wait(lambda: len(page.elements(".tile")) == 5)
        page.press(Keys.ENTER)
        page.wait_for_state("labelled")
        assert page.console_errors() == []
    finally:
        server.kill()


@needs_a_browser
def test_counts_do_not_wait_for_the_model(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 8, guesses=(None,), live=True)  # type: ignore[arg-type]
    server = Server(tmp_path, live=SlowModel(store))
    try:
        page.open(server)
        page.answer("2")
        assert page.text("counts") == "1 labelled · 1 by you · the model is learning…"
        page.wait_for_text("learnt-text", "of the last 1 answers")  # without another answer
        assert "the model is sure of 7 of 7" in page.text("counts")
        page.press("g")
        page.wait(lambda: len(page.elements(".tile")) == 7)
        page.click(".tile")
        page.press(Keys.ENTER)
        page.wait_for_text("guesses", "green (1)")
        page.press("u")
        page.wait_for_text("notice", "6 answers are withdrawn")
        page.wait_for_text("guesses", "green (7)")
        assert page.console_errors() == []
    finally:
        server.kill()
