"""Edge cases of a page that stays open for hours: no question is hidden, lost or asked twice."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page_browser
from page_browser import (
    answer,
    element_text,
    is_saved,
    labels,
    needs_a_browser,
    open_page,
    page_state,
    press,
    serving,
    shown_question,
    wait_until,
)
from page_rounds import image_questions
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ducats.annotation import AnnotationStore

pytestmark = needs_a_browser
chromium, browser = page_browser.chromium, page_browser.browser


def rewrite_rules(store: AnnotationStore, **changed: object) -> None:
    """Change the rules of the written round."""
    path = store.round_folder(1) / "rules.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_a_late_answer_is_reported(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    with serving(tmp_path) as server:
        open_page(browser, server)
        store.receive(
            [{"question": f"r1/{n}", "word": "red", "annotator": "Bob"} for n in (1, 2)], channel="page"
        )
        assert store.close_round(1) is not None
        press(browser, "1")
        wait_until(browser, lambda: page_state(browser) == "closed")
        wait_until(browser, lambda: "Too late" in element_text(browser, "notice"))
        assert [one.reject_reason for one in store.answers()] == [None, None, "late"]


def test_undo_in_the_grid_restores_any_group(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 12)
    path = store.round_folder(1) / "questions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["guess"] = "red" if line["number"] < 10 else "blue"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving(tmp_path) as server:
        open_page(browser, server)
        press(browser, "g")
        other = wait_until(
            browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#guesses button[aria-pressed=false]")
        )
        other[0].click()
        wait_until(browser, lambda: "Label 3 as blue" in element_text(browser, "accept"))
        press(browser, Keys.ENTER)
        wait_until(browser, lambda: labels(store)[9:] == ["blue"] * 3)
        press(browser, "u")
        wait_until(browser, lambda: labels(store) == [None] * 12)


def test_answers_from_the_grid_are_not_asked_again_one_by_one(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    image_questions(tmp_path, 9)
    with serving(tmp_path) as server:
        open_page(browser, server)
        assert shown_question(browser) == "r1/1"
        press(browser, "g")
        wait_until(browser, lambda: "Label 6 as red" in element_text(browser, "accept"))
        press(browser, "1")  # the first tile, also the current question behind the grid
        wait_until(browser, lambda: is_saved(browser) and "1 of 9 done" in element_text(browser, "counts"))
        browser.execute_script("document.dispatchEvent(new Event('visibilitychange'))")  # polls immediately
        loaded = "return performance.getEntriesByType('resource').map((one) => one.name)"
        wait_until(browser, lambda: str(browser.execute_script(loaded)).count("/api/state") >= 2)
        browser.execute_async_script("setTimeout(arguments[0], 100)")  # the reply is handled
        press(browser, Keys.ESCAPE)
        wait_until(browser, lambda: page_state(browser) == "asking")
        assert wait_until(browser, lambda: shown_question(browser)) != "r1/1"


def test_a_class_that_begins_with_a_digit_can_be_searched(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    rewrite_rules(store, classes=[f"{n:03d}.bird" for n in range(1, 60)])
    with serving(tmp_path) as server:
        open_page(browser, server)
        assert not browser.find_element(By.ID, "void-key").is_displayed()
        answer(browser, "017" + Keys.ENTER)
        browser.find_element(By.CSS_SELECTOR, "[data-word=void]").click()
        wait_until(browser, lambda: page_state(browser) == "complete")
    assert labels(store) == ["017.bird", "void"]


def test_undoing_a_skip_keeps_earlier_answers(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2, rule="unanimous", min_annotators=2)
    for annotator, word in (("Ada", "red"), ("Bob", "blue")):
        store.receive([{"question": "r1/1", "word": word, "annotator": annotator}], channel="page")
    with serving(tmp_path) as server:
        open_page(browser, server)
        answer(browser, "2")  # r1/2, which she has not seen
        assert wait_until(browser, lambda: shown_question(browser)) == "r1/1"
        press(browser, "s")
        wait_until(browser, lambda: is_saved(browser) and store.answers()[-1].kind == "skip")
        press(browser, "U")  # capital letters work, too
        wait_until(browser, lambda: shown_question(browser) == "r1/1")
        wait_until(browser, lambda: is_saved(browser))
        assert [vote.word for vote in store.status("r1/1").votes] == ["red", "blue"]
        assert "Ada chose red, Bob chose blue" in element_text(browser, "votes")
        answer(browser, "3")
        wait_until(browser, lambda: store.status("r1/1").word == "blue")


def test_answers_survive_a_full_browser_storage(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    with serving(tmp_path) as server:
        open_page(browser, server)
        answer(browser, "1")
        wait_until(browser, lambda: is_saved(browser))
        full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
        browser.execute_script(full)
        answer(browser, "2")
        wait_until(browser, lambda: labels(store) == ["red", "green"])


@contextmanager
def other_site(link: str) -> Iterator[str]:
    """Serve a page of another site with a link to an address."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a id="link" href="{link}">answer here</a>'.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{site.server_address[1]}/"
        finally:
            site.shutdown()


def test_a_link_from_another_site_opens_the_page_and_survives_a_reload(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    image_questions(tmp_path, 2)
    with serving(tmp_path) as server, other_site(server.url) as site:
        browser.get(site)
        browser.find_element(By.ID, "link").click()
        wait_until(browser, lambda: shown_question(browser) == "r1/1")
        browser.refresh()
        wait_until(browser, lambda: shown_question(browser) == "r1/1")
