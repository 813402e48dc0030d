"""The page's review mode: which answers it shows to whom, and what a decision does."""

from pathlib import Path
from typing import Any

import page_browser
import pytest
import torch
import yaml
from page_browser import Page, needs_a_browser, serving
from page_client import client, post
from page_rounds import CLASSES, image_questions
from selenium.webdriver.common.keys import Keys
from starlette.testclient import TestClient

from ducats.annotation import AnnotationStore
from ducats.ledger import Ledger, Request
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.pool_file import PoolInfo
from ducats.runfolder.run_folder import RunFolder

page, chromium = page_browser.page, page_browser.chromium  # fixtures


def closed_round(run: Path) -> AnnotationStore:
    """A round of three images that the run has taken; the model was sure of another class for the third."""
    store = image_questions(run, 3, guesses=("red", "green", "red"), probabilities=(0.9,))
    for n, word in enumerate(("red", "green", "blue"), start=1):
        store.receive([{"question": f"r1/{n}", "word": word, "annotator": "ada"}], channel="page")
    store.receive([{"question": "r1/2", "word": "blue", "annotator": "ben"}], channel="page")
    closed = store.close_round(1)
    assert closed is not None
    keys = ["r1/1", "r1/2", "r1/3"]
    RunFolder(run).save_pool(PoolInfo(keys))
    RunFolder(run).data_path.write_text(yaml.safe_dump({"classes": list(CLASSES)}))
    labels = torch.tensor([CLASSES.index(closed.words[key]) for key in keys])
    Ledger(RunFolder(run).labels_path, keys).append(
        Request(1, torch.arange(3), torch.zeros(3, dtype=torch.long)), labels
    )
    return store


def review(page: TestClient, annotator: str = "ada") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = page.get("/api/review", params={"annotator": annotator}).json()["items"]
    return items


def decide(page: TestClient, question: str, word: str, annotator: str = "ada", number: int = 1) -> Any:
    body = {"annotator": annotator, "round": number, "question": question, "word": word}
    reply = page.post("/api/review", json=body)
    return reply.json() if reply.status_code == 200 else (reply.status_code, reply.text.strip())


def test_decisions_about_a_closed_round_are_amendments(tmp_path: Path) -> None:
    closed_round(tmp_path)
    page = client(tmp_path)
    third, second = review(page, "eve")
    assert (third["id"], third["review"]["label"]) == ("r1/3", "blue")
    assert third["review"]["reasons"] == ["the model predicted red (90 %)"]
    assert second["review"]["reasons"] == ["people differ (ada: green, ben: blue)"]
    assert decide(page, "r1/3", "red", "eve") == {"label": "red", "message": "Corrected: blue → red."}
    assert decide(page, "r1/2", "green", "eve") == {"label": "green", "message": ""}  # confirmed
    assert review(page) == []
    amendments = RunFolder(tmp_path).load_amendments()
    assert [(one.annotator, one.channel, one.corrections[0].new) for one in amendments] == [
        ("eve", "page", "red"),
        ("eve", "page", "green"),
    ]
    assert not amendments[1].corrections[0].runs


def test_a_closed_round_can_be_corrected_to_a_class_that_was_added_later(tmp_path: Path) -> None:
    closed_round(tmp_path)
    changes = ClassList(CLASSES).with_added(["purple"], 2).with_merged("green", "blue").changes
    RunFolder(tmp_path).save_class_changes(changes)
    page = client(tmp_path)
    names = [one["name"] for one in page.get("/api/review").json()["rounds"]["1"]["rules"]["classes"]]
    assert names == ["red", "blue", "purple"]
    assert decide(page, "r1/3", "purple") == {"label": "purple", "message": "Corrected: blue → purple."}


def test_decisions_about_an_open_round_are_answers(tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2, rule="unanimous", min_annotators=2)
    page = client(tmp_path)
    post(page, ("r1/1", "red"), annotator="ada")
    post(page, ("r1/1", "blue"), annotator="ben")
    (item,) = review(page, "ada")
    assert item["review"] == {
        "label": None,
        "reasons": ["people differ (ada: red, ben: blue)"],
        "closed": False,
    }
    assert review(page, "eve") == []  # she may still be asked, and should answer independently
    assert decide(page, "r1/1", "red", "ada")["message"] == "Saved, but people still differ (rule unanimous)."
    assert decide(page, "r1/1", "red", "ben") == {"label": "red", "message": ""}
    assert [one.channel for one in store.answers()] == ["page", "page", "review", "review"]
    assert review(page, "ada") == []


def test_a_blind_review_does_not_show_predictions(tmp_path: Path) -> None:
    closed_round(tmp_path)
    (item,) = review(client(tmp_path, blind=True))
    assert item["id"] == "r1/2"
    assert "guess" not in item


@pytest.mark.parametrize(
    ("question", "word", "number"),
    [("r1/9", "red", 1), ("r1/1", "horse", 1), ("r1/1", "unsure", 1), ("r1/1", "", 1), ("r1/1", "red", 7)],
)
def test_invalid_decisions_are_refused(tmp_path: Path, question: str, word: str, number: int) -> None:
    store = image_questions(tmp_path, 2)
    page = client(tmp_path)
    assert decide(page, question, word, number=number)[0] == 400
    assert decide(page, "r1/1", "red", annotator="")[0] == 400
    bodies: list[object] = [[], {}, {"annotator": "ada", "round": "1", "question": "r1/1", "word": "red"}]
    for body in bodies:
        assert page.post("/api/review", json=body).status_code == 400
    assert store.answers() == []


def test_a_round_that_the_run_has_not_taken_cannot_be_amended_yet(tmp_path: Path) -> None:
    store = image_questions(tmp_path, 1)
    store.receive([{"question": "r1/1", "word": "blue", "annotator": "ada"}], channel="page")
    assert store.close_round(1) is not None
    RunFolder(tmp_path).save_pool(PoolInfo(["r1/1"]))
    status, message = decide(client(tmp_path), "r1/1", "red")
    assert status == 400
    assert "has not taken round 1" in message


@needs_a_browser
def test_the_reviewer_steps_through_the_answers_and_returns_to_the_questions(
    page: Page, tmp_path: Path
) -> None:
    closed_round(tmp_path)
    store = image_questions(tmp_path, 2, number=2)
    with page.serving(tmp_path):
        page.wait_for_question("r2/1")
        page.press("r")
        page.wait_for_question("r1/3")
        assert page.state == "review"
        assert "the model predicted red (90 %)" in page.text("review")
        assert page.text("counts") == "1 of 2 · round 1: a change corrects the label"
        assert not page.browser.find_element("id", "undo").is_displayed()
        page.press("s")
        page.wait_for_question("r1/2")
        page.press(Keys.ARROW_LEFT)
        page.wait_for_question("r1/3")
        page.press("1")  # red
        page.wait_for_question("r1/2")
        page.wait_for_text("notice", "Corrected: blue → red.")
        page.press(Keys.ENTER)  # confirms green, and that was the last
        page.wait_for_question("r2/1")
        page.wait(lambda: page.state == "asking")
        page.answer("1")
        page.wait_until_saved()
        page.press("r")
        page.wait_for_text("notice", "Nothing to review")
        assert page.console_errors() == []
    amended = [one.corrections[0] for one in RunFolder(tmp_path).load_amendments()]
    assert [(one.question, one.new) for one in amended] == [("r1/3", "red"), ("r1/2", "green")]
    assert store.status("r2/1").word == "red"


@needs_a_browser
def test_two_people_can_use_one_browser(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 1, rule="unanimous", min_annotators=2)
    with serving(tmp_path, annotator="", people=("ada", "ben")) as started:
        for name, state in (("ada", "others"), ("ben", "complete")):
            page.browser.get(started.links[name])
            page.wait_for_question("r1/1")
            assert page.text("annotator-button") == name
            page.press("1")
            page.wait_for_state(state)
    assert [(one.annotator, one.word) for one in store.answers()] == [("ada", "red"), ("ben", "red")]
