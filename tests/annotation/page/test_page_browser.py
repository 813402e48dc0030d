"""Whole rounds answered in a real browser; no answer is lost when the server is killed."""

import json
from collections.abc import Callable
from pathlib import Path

import page_browser
from page_browser import (
    answer,
    console_errors,
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
from page_rounds import CLASSES, image_questions, pixel_questions, true_class
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = needs_a_browser
chromium, browser = page_browser.chromium, page_browser.browser
save_screenshot = page_browser.save_screenshot


def key_of(question: str) -> str:
    """Return the key of an image's true class."""
    return str((int(question.split("/")[1]) - 1) % 3 + 1)


def test_a_round_of_images_by_keys(
    browser: webdriver.Chrome, tmp_path: Path, save_screenshot: Callable[[str], None]
) -> None:
    store = image_questions(tmp_path, 6)
    with serving(tmp_path, annotator="") as server:
        browser.get(server.url)
        name = wait_until(browser, lambda: browser.find_element(By.ID, "name"))
        wait_until(browser, name.is_displayed)
        name.send_keys("Ada", Keys.ENTER)
        wait_until(browser, lambda: shown_question(browser) == "r1/1")
        save_screenshot("image")
        assert "unlike the training images" in element_text(browser, "hints")
        assert "The model has seen few images like this one" in element_text(browser, "why")
        assert "42% sure" in element_text(browser, "guess")
        answer(browser, Keys.ENTER)  # the guess, which is correct
        answer(browser, "3")  # wrong
        wait_until(browser, lambda: is_saved(browser))
        press(browser, "u")
        wait_until(browser, lambda: shown_question(browser) == "r1/2")
        answer(browser, "2")
        answer(browser, "s")  # r1/3, later
        wait_until(browser, lambda: is_saved(browser))
        browser.refresh()
        assert wait_until(browser, lambda: shown_question(browser)) == "r1/4"
        assert "2 of 6 done · 2 by you" in element_text(browser, "counts")
        answer(browser, "1")
        wait_until(browser, lambda: is_saved(browser))
        browser.refresh()
        wait_until(browser, lambda: shown_question(browser) == "r1/5")
        press(browser, Keys.BACKSPACE)  # an answer given before the reload
        wait_until(browser, lambda: shown_question(browser) == "r1/4")
        wait_until(browser, lambda: not store.status("r1/4").votes)
        answer(browser, "1")
        answer(browser, "0")  # r1/5 is none of these
        answer(browser, "?")  # r1/6, unsure
        assert wait_until(browser, lambda: shown_question(browser)) == "r1/3"
        answer(browser, "3")
        assert wait_until(browser, lambda: shown_question(browser)) == "r1/6"
        answer(browser, "3")
        wait_until(browser, lambda: page_state(browser) == "complete")
        assert labels(store) == ["red", "green", "blue", "red", "void", "blue"]
        assert {one.annotator for one in store.answers()} == {"Ada"}
        assert all(
            one.seconds is not None and one.seconds < 60 for one in store.answers() if one.kind != "undo"
        )
        assert "--wait" in element_text(browser, "message")
        assert store.close_round(1) is not None
        image_questions(tmp_path, 1, number=2)
        wait_until(browser, lambda: shown_question(browser) == "r2/1")  # without a reload
        assert console_errors(browser) == []


def test_a_killed_server_loses_nothing(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 8)
    token = tmp_path / "token"
    with serving(tmp_path, token_file=token) as server:
        open_page(browser, server)
        answer(browser, "1")
        wait_until(browser, lambda: is_saved(browser))
        loaded = "return performance.getEntriesByType('resource').map((one) => one.name)"
        # Five are preloaded.
        wait_until(browser, lambda: str(browser.execute_script(loaded)).count("/image/") >= 6)
        server.kill()
        for question in ("r1/2", "r1/3", "r1/4"):  # preloaded
            assert wait_until(browser, lambda: shown_question(browser)) == question
            answer(browser, key_of(question))
        wait_until(browser, lambda: "3 answers are stored" in element_text(browser, "saved"))
        assert "Not saved" in element_text(browser, "saved")
    assert len(store.answers()) == 1
    with serving(tmp_path, token_file=token) as server:
        wait_until(browser, lambda: is_saved(browser))  # the open page reconnects
        assert labels(store)[:4] == ["red", "green", "blue", "red"]
        server.kill()
        answer(browser, key_of(shown_question(browser)))
        wait_until(browser, lambda: "Not saved" in element_text(browser, "saved"))
    with serving(tmp_path) as server:  # a new token: open the page again
        open_page(browser, server)
        wait_until(browser, lambda: is_saved(browser))
        while shown_question(browser):
            answer(browser, key_of(shown_question(browser)))
        wait_until(browser, lambda: page_state(browser) == "complete")
    assert labels(store) == [CLASSES[n % 3] for n in range(8)]
    assert len(store.answers()) == 8  # no duplicates


def test_a_question_without_a_visible_image_cannot_be_answered(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    store = image_questions(tmp_path, 2)
    (store.round_folder(1) / "thumbnails" / "0002.png").unlink()
    Path(store.question_round(1).questions[1].original_path).unlink()
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/image/*"]})
    with serving(tmp_path) as server:
        try:
            browser.get(server.url)
            wait_until(browser, lambda: "Waiting for the server" in element_text(browser, "image"))
            press(browser, "1")
        finally:
            browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        wait_until(browser, lambda: shown_question(browser) == "r1/1")
        assert store.answers() == []
        answer(browser, "1")
        wait_until(browser, lambda: "no longer exists" in element_text(browser, "image"))
        answer(browser, "0")
        wait_until(browser, lambda: page_state(browser) == "complete")
    assert labels(store) == ["red", "void"]


def test_a_round_of_pixels_by_keys(
    browser: webdriver.Chrome, tmp_path: Path, save_screenshot: Callable[[str], None]
) -> None:
    store = pixel_questions(tmp_path)
    with serving(tmp_path) as server:
        open_page(browser, server)
        save_screenshot("pixel")

        def image_url() -> str:
            return str(browser.find_element(By.CSS_SELECTOR, "#image img").get_attribute("src"))

        first = image_url()
        press(browser, "+")
        wait_until(browser, lambda: image_url() != first and "zoom=1" in image_url())
        press(browser, "o")
        wait_until(browser, lambda: "/context/" in image_url())
        press(browser, "o")
        assert "All 3 in this area" in element_text(browser, "together")
        press(browser, "a")
        wait_until(browser, lambda: "together=1" in image_url())
        complete = "return document.querySelector('#image img').complete"
        wait_until(browser, lambda: browser.execute_script(complete))
        save_screenshot("pixel-segment")
        answer(browser, "2")
        assert wait_until(browser, lambda: shown_question(browser)) == "street.png#3,5"
        press(browser, "u")  # all three
        wait_until(browser, lambda: shown_question(browser) == "street.png#15,31")
        wait_until(browser, lambda: labels(store) == [None] * 5)
        press(browser, "a")
        answer(browser, "2")
        answer(browser, "1")
        answer(browser, "3")
        wait_until(browser, lambda: page_state(browser) == "complete")
        assert console_errors(browser) == []
    wanted = {
        one.id: true_class(one.area.y, one.area.x) for one in store.question_round(1).questions if one.area
    }
    assert {question: one.word for question, one in store.statuses(1).items()} == wanted


def test_a_group_with_the_same_guess_is_answered_at_once(
    browser: webdriver.Chrome, tmp_path: Path, save_screenshot: Callable[[str], None]
) -> None:
    store = image_questions(tmp_path, 9)  # 3 are blue and guessed red
    with serving(tmp_path) as server:
        open_page(browser, server)
        press(browser, "g")
        tiles = wait_until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".tile"))
        assert len(tiles) == 6
        loaded = "return [...document.querySelectorAll('.tile img')].every((one) => one.naturalWidth)"
        wait_until(browser, lambda: browser.execute_script(loaded))

        def deselect_blue() -> None:
            for tile in tiles:
                if int(str(tile.get_attribute("title")).split("/")[1]) % 3 == 0:
                    tile.click()

        deselect_blue()
        save_screenshot("grid")
        assert "Label 3 as red" in element_text(browser, "accept")
        select_all = browser.find_element(By.ID, "select-all")
        for left in (0, 6):
            select_all.click()
            assert len(browser.find_elements(By.CSS_SELECTOR, ".tile[aria-pressed=true]")) == left
        deselect_blue()
        press(browser, Keys.ENTER)
        wait_until(browser, lambda: labels(store).count("red") == 3)
        for left in (2, 1, 0):
            press(browser, "3")  # the one in focus
            wait_until(browser, lambda: labels(store).count("blue") == 3 - left)  # noqa: B023 - called at once
        wait_until(browser, lambda: "as green" in element_text(browser, "accept"))
        press(browser, "u")  # the last blue one
        wait_until(browser, lambda: labels(store).count("blue") == 2)
        wait_until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#guesses button")) == 2)
        press(browser, Keys.ESCAPE)
        wait_until(browser, lambda: page_state(browser) == "asking" and shown_question(browser))
        while shown_question(browser):
            answer(browser, key_of(shown_question(browser)))
        wait_until(browser, lambda: page_state(browser) == "complete")
        assert console_errors(browser) == []
    assert labels(store) == [CLASSES[n % 3] for n in range(9)]


def test_on_a_phone_by_touch(
    browser: webdriver.Chrome, tmp_path: Path, save_screenshot: Callable[[str], None]
) -> None:
    store = image_questions(tmp_path, 2)
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        with serving(tmp_path) as server:
            open_page(browser, server)
            save_screenshot("phone")
            page_width = "return document.documentElement.scrollWidth"
            assert browser.execute_script(page_width) <= 360
            buttons = browser.find_elements(By.CSS_SELECTOR, "#classes button, #commands button, #guess")
            assert len(buttons) == 8
            assert all(button.size["height"] >= 44 for button in buttons)
            browser.find_element(By.CSS_SELECTOR, "[data-name=red]").click()
            wait_until(browser, lambda: shown_question(browser) == "r1/2")
            browser.find_element(By.ID, "guess").click()
            wait_until(browser, lambda: page_state(browser) == "complete")
            browser.find_element(By.ID, "last-undo").click()
            wait_until(browser, lambda: shown_question(browser) == "r1/2")
            browser.find_element(By.ID, "guess").click()
            wait_until(browser, lambda: page_state(browser) == "complete" and is_saved(browser))
            assert console_errors(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert labels(store) == ["red", "green"]


def test_many_classes_are_searched_and_new_ones_can_be_named(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    store = image_questions(tmp_path, 3, allow_new_classes=True)
    path = store.round_folder(1) / "rules.json"
    rules = json.loads(path.read_text())
    rules["classes"] = [*CLASSES, *(f"class {n}" for n in range(40))]
    path.write_text(json.dumps(rules))
    with serving(tmp_path) as server:
        open_page(browser, server)
        answer(browser, "ss 17" + Keys.ENTER)
        answer(browser, Keys.ENTER)  # an empty field: the guess
        field = browser.find_element(By.ID, "name-of-class")
        field.send_keys("okapi", Keys.ENTER)
        wait_until(browser, lambda: page_state(browser) == "complete")
        assert console_errors(browser) == []
    assert labels(store) == ["class 17", "green", "okapi"]


def test_a_dispute_is_shown_and_resolved(browser: webdriver.Chrome, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 1, rule="unanimous", min_annotators=2)
    store.receive([{"question": "r1/1", "word": "red", "annotator": "Ada"}], channel="page")
    store.receive([{"question": "r1/1", "word": "blue", "annotator": "Bob"}], channel="page")
    with serving(tmp_path, blind=True) as server:
        open_page(browser, server)
        assert "Ada chose red, Bob chose blue" in element_text(browser, "votes")
        assert not browser.find_element(By.ID, "guess").is_displayed()
        answer(browser, "1")  # confirms her answer: now it is Bob's turn
        wait_until(browser, lambda: page_state(browser) == "others")
        store.receive([{"question": "r1/1", "word": "red", "annotator": "Bob"}], channel="page")
        wait_until(browser, lambda: page_state(browser) == "complete")
        assert console_errors(browser) == []
    assert labels(store) == ["red"]
