"""Edge cases of a page that stays open for hours: no question is hidden, lost or asked twice."""

from pathlib import Path

import page_browser
from page_browser import Page, labels, needs_a_browser, serving
from page_rounds import image_questions
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = needs_a_browser
chromium, page = page_browser.chromium, page_browser.page


def test_a_late_answer_is_reported(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    with page.serving(tmp_path):
        store.receive(
            [{"question": f"r1/{n}", "word": "red", "annotator": "Bob"} for n in (1, 2)], channel="page"
        )
        assert store.close_round(1) is not None
        page.press("1")
        page.wait_for_state("closed")
        page.wait_for_text("notice", "Too late")
        assert [one.reject_reason for one in store.answers()] == [None, None, "late"]


def test_undo_in_the_grid_restores_any_group(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 12, guesses=[*["red"] * 9, *["blue"] * 3])
    with page.serving(tmp_path):
        page.press("g")
        page.wait(lambda: page.elements("#guesses button[aria-pressed=false]"))[0].click()
        page.wait_for_text("accept", "Label 3 as blue")
        page.press(Keys.ENTER)
        page.wait(lambda: labels(store)[9:] == ["blue"] * 3)
        page.press("u")
        page.wait(lambda: labels(store) == [None] * 12)


def test_answers_from_the_grid_are_not_asked_again_one_by_one(page: Page, tmp_path: Path) -> None:
    image_questions(tmp_path, 9)
    with page.serving(tmp_path):
        assert page.question == "r1/1"
        page.press("g")
        page.wait_for_text("accept", "Label 6 as red")
        page.press("1")  # the first tile, also the current question behind the grid
        page.wait(lambda: page.is_saved() and "1 of 9 done" in page.text("counts"))
        page.run("document.dispatchEvent(new Event('visibilitychange'))")  # polls immediately
        page.wait(lambda: page.loaded().count("/api/state") >= 2)
        page.browser.execute_async_script("setTimeout(arguments[0], 100)")  # the reply is handled
        page.press(Keys.ESCAPE)
        page.wait_for_state("asking")
        assert page.wait_for_question() != "r1/1"


def test_a_class_that_begins_with_a_digit_can_be_searched(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2, classes=tuple(f"{n:03d}.bird" for n in range(1, 60)))
    with page.serving(tmp_path):
        assert not page.browser.find_element(By.ID, "void-key").is_displayed()
        page.answer("017" + Keys.ENTER)
        page.click("[data-word=void]")
        page.wait_for_state("complete")
    assert labels(store) == ["017.bird", "void"]


def test_undoing_a_skip_keeps_earlier_answers(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2, rule="unanimous", min_annotators=2)
    for annotator, word in (("Ada", "red"), ("Bob", "blue")):
        store.receive([{"question": "r1/1", "word": word, "annotator": annotator}], channel="page")
    with page.serving(tmp_path):
        page.answer("2")  # r1/2, which she has not seen
        assert page.wait_for_question() == "r1/1"
        page.press("s")
        page.wait(lambda: page.is_saved() and store.answers()[-1].kind == "skip")
        page.press("U")  # capital letters work, too
        page.wait_for_question("r1/1")
        page.wait_until_saved()
        assert [vote.word for vote in store.status("r1/1").votes] == ["red", "blue"]
        assert "Ada chose red, Bob chose blue" in page.text("votes")
        page.answer("3")
        page.wait(lambda: store.status("r1/1").word == "blue")


def test_answers_survive_a_full_browser_storage(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    with page.serving(tmp_path):
        page.answer("1")
        page.wait_until_saved()
        full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
        page.run(full)
        page.answer("2")
        page.wait(lambda: labels(store) == ["red", "green"])


def test_a_link_from_another_site_opens_the_page_and_survives_a_reload(page: Page, tmp_path: Path) -> None:
    image_questions(tmp_path, 2)
    with serving(tmp_path) as server:
        page.browser.get(f"data:text/html,<a id=link href='{server.url}'>answer here</a>")
        page.click("#link")
        page.wait_for_question("r1/1")
        page.browser.refresh()
        page.wait_for_question("r1/1")
