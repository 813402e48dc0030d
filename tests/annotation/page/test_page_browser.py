"""Whole rounds answered in a real browser; no answer is lost when the server is killed."""

from pathlib import Path

import page_browser
from page_browser import Page, labels, needs_a_browser, serving
from page_rounds import CLASSES, image_questions, pixel_questions, true_class
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ducats.annotation import Question
from ducats.annotation.oracles.question_files import contact_sheet

pytestmark = needs_a_browser
chromium, page = page_browser.chromium, page_browser.page


def key_of(question: str) -> str:
    """Return the key of an image's true class."""
    return str((int(question.split("/")[1]) - 1) % 3 + 1)


def test_a_round_of_images_by_keys(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 6)
    with serving(tmp_path, annotator="") as server:
        page.browser.get(server.url)
        name = page.wait(lambda: page.browser.find_element(By.ID, "name"))
        page.wait(name.is_displayed)
        name.send_keys("Ada", Keys.ENTER)
        page.wait_for_question("r1/1")
        assert "The model has seen few images like this one" in page.text("why")
        assert "62% sure" in page.text("guess")
        page.answer(Keys.ENTER)  # the guess, which is correct
        page.answer("3")  # wrong
        page.wait_until_saved()
        page.press("u")
        page.wait_for_question("r1/2")
        page.answer("2")
        page.answer("s")  # r1/3, later
        page.wait_until_saved()
        page.browser.refresh()
        assert page.wait_for_question() == "r1/4"
        assert "2 of 6 done · 2 by you" in page.text("counts")
        page.answer("1")
        page.wait_until_saved()
        page.browser.refresh()
        page.wait_for_question("r1/5")
        page.press(Keys.BACKSPACE)  # an answer given before the reload
        page.wait_for_question("r1/4")
        page.wait(lambda: not store.status("r1/4").votes)
        page.answer("1")
        page.answer("0")  # r1/5 is none of these
        page.answer("?")  # r1/6, unsure
        assert page.wait_for_question() == "r1/3"
        page.answer("3")
        assert page.wait_for_question() == "r1/6"
        page.answer("3")
        page.wait_for_state("complete")
        assert labels(store) == ["red", "green", "blue", "red", "void", "blue"]
        assert {one.annotator for one in store.answers()} == {"Ada"}
        assert all(
            one.seconds is not None and one.seconds < 60 for one in store.answers() if one.kind != "undo"
        )
        assert "--wait" in page.text("message")
        assert store.close_round(1) is not None
        image_questions(tmp_path, 1, number=2)
        page.wait_for_question("r2/1")  # without a reload
        assert page.console_errors() == []


def test_a_killed_server_loses_nothing(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 8)
    token = tmp_path / "token"
    with page.serving(tmp_path, token_file=token) as server:
        page.answer("1")
        page.wait_until_saved()
        # Five are preloaded.
        page.wait(lambda: page.loaded().count("/image/") >= 6)
        server.kill()
        for question in ("r1/2", "r1/3", "r1/4"):  # preloaded
            assert page.wait_for_question() == question
            page.answer(key_of(question))
        page.wait_for_text("saved", "3 answers are stored")
        assert "Not saved" in page.text("saved")
    assert len(store.answers()) == 1
    with serving(tmp_path, token_file=token) as server:
        page.wait_until_saved()  # the open page reconnects
        assert labels(store)[:4] == ["red", "green", "blue", "red"]
        server.kill()
        page.answer(key_of(page.question))
        page.wait_for_text("saved", "Not saved")
    with serving(tmp_path) as server:  # a new token: open the page again
        page.open(server)
        page.wait_until_saved()
        while page.question:
            page.answer(key_of(page.question))
        page.wait_for_state("complete")
    assert labels(store) == [CLASSES[n % 3] for n in range(8)]
    assert len(store.answers()) == 8  # no duplicates


def test_a_question_without_a_visible_image_cannot_be_answered(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    (store.round_folder(1) / "thumbnails" / "0002.png").unlink()
    Path(store.question_round(1).questions[1].original_path).unlink()
    page.browser.execute_cdp_cmd("Network.enable", {})
    page.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/image/*"]})
    with serving(tmp_path) as server:
        try:
            page.browser.get(server.url)
            page.wait_for_text("image", "Waiting for the server")
            page.press("1")
        finally:
            page.browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        page.wait_for_question("r1/1")
        assert store.answers() == []
        page.answer("1")
        page.wait_for_text("image", "no longer exists")
        page.answer("0")
        page.wait_for_state("complete")
    assert labels(store) == ["red", "void"]


def test_a_round_of_pixels_by_keys(page: Page, tmp_path: Path) -> None:
    store = pixel_questions(tmp_path)
    with page.serving(tmp_path):

        def image_url() -> str:
            return str(page.browser.find_element(By.CSS_SELECTOR, "#image img").get_attribute("src"))

        first = image_url()
        page.press("+")
        page.wait(lambda: image_url() != first and "zoom=1" in image_url())
        page.press("o")
        page.wait(lambda: "/context/" in image_url())
        page.press("o")
        assert "All 3 in this area" in page.text("together")
        page.press("a")
        page.wait(lambda: "together=1" in image_url())
        complete = "return document.querySelector('#image img').complete"
        page.wait(lambda: page.run(complete))
        page.answer("2")
        assert page.wait_for_question() == "street.png#3,5"
        page.press("u")  # all three
        page.wait_for_question("street.png#15,31")
        page.wait(lambda: labels(store) == [None] * 5)
        page.press("a")
        page.answer("2", "1", "3")
        page.wait_for_state("complete")
        assert page.console_errors() == []
    wanted = {
        one.id: true_class(one.area.y, one.area.x) for one in store.question_round(1).questions if one.area
    }
    assert {question: one.word for question, one in store.statuses(1).items()} == wanted


def test_a_group_with_the_same_guess_is_answered_at_once(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 9)  # 3 are blue and guessed red
    with page.serving(tmp_path):
        page.press("g")
        tiles = page.wait(lambda: page.elements(".tile"))
        assert len(tiles) == 6
        loaded = "return [...document.querySelectorAll('.tile img')].every((one) => one.naturalWidth)"
        page.wait(lambda: page.run(loaded))

        def deselect_blue() -> None:
            for tile in tiles:
                if int(str(tile.get_attribute("title")).split("/")[1]) % 3 == 0:
                    tile.click()

        deselect_blue()
        assert "Label 3 as red" in page.text("accept")
        select_all = page.browser.find_element(By.ID, "select-all")
        for left in (0, 6):
            select_all.click()
            assert len(page.elements(".tile[aria-pressed=true]")) == left
        deselect_blue()
        page.press(Keys.ENTER)
        page.wait(lambda: labels(store).count("red") == 3)
        for left in (2, 1, 0):
            page.press("3")  # the one in focus
            page.wait(lambda: labels(store).count("blue") == 3 - left)  # noqa: B023 - called at once
        page.wait_for_text("accept", "as green")
        page.press("u")  # the last blue one
        page.wait(lambda: labels(store).count("blue") == 2)
        page.wait(lambda: len(page.elements("#guesses button")) == 2)
        page.press(Keys.ESCAPE)
        page.wait(lambda: page.state == "asking" and page.question)
        while page.question:
            page.answer(key_of(page.question))
        page.wait_for_state("complete")
        assert page.console_errors() == []
    assert labels(store) == [CLASSES[n % 3] for n in range(9)]


def test_a_weak_guess_needs_the_key_of_the_class(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 3, guesses=["red", "green"], probabilities=[0.15, 0.5])
    with page.serving(tmp_path):
        assert "only 15% sure" in page.text("weak-guess")
        for key in (Keys.ENTER, Keys.SPACE):
            page.press(key)
            page.wait_for_text("notice", "press the key of the class")
        page.press("g")  # the grid does not preselect it, either
        page.wait_for_text("accept", "Label 0 as red")
        page.press(Keys.ESCAPE)
        page.wait_for_question("r1/1")
        page.answer("1")
        assert page.wait_for_question() == "r1/2"
        assert not page.browser.find_element(By.ID, "notice").is_displayed()
        page.answer(Keys.ENTER)  # 50% sure: accepted
        page.wait_for_question("r1/3")
        page.wait(lambda: labels(store) == ["red", "green", None])
        assert page.console_errors() == []


def test_escape_returns_to_the_question_from_which_the_grid_was_opened(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 6)
    with page.serving(tmp_path):
        page.answer("1", "2")
        page.press("u")  # back to the second
        page.wait_for_question("r1/2")
        page.wait(lambda: page.is_saved() and labels(store)[:2] == ["red", None])
        page.press("g")
        page.wait_for_text("accept", "Label 2 as green")
        page.press(Keys.ESCAPE)
        page.wait_for_state("asking")
        assert page.wait_for_question() == "r1/2"
        page.press("g")
        page.wait_for_text("accept", "Label 2 as green")
        page.press(Keys.ENTER)  # answers it, too ...
        page.wait_for_text("accept", "as red")
        page.press("u")  # ... and withdraws that
        page.wait(lambda: len(page.elements("#guesses button")) == 2)
        page.press(Keys.ESCAPE)
        page.wait_for_state("asking")
        assert page.wait_for_question() == "r1/2"
        assert page.console_errors() == []


def test_on_a_phone_by_touch(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 2)
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        with page.serving(tmp_path):
            page_width = "return document.documentElement.scrollWidth"
            assert page.run(page_width) <= 360
            found = page.elements("#classes button, #commands button, #guess")
            buttons = [button for button in found if button.is_displayed()]
            assert len(buttons) == 8
            assert all(button.size["height"] >= 44 for button in buttons)
            page.click("[data-name=red]")
            page.wait_for_question("r1/2")
            page.click("#guess")
            page.wait_for_state("complete")
            page.click("#last-undo")
            page.wait_for_question("r1/2")
            page.click("#guess")
            page.wait(lambda: page.state == "complete" and page.is_saved())
            assert page.console_errors() == []
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert labels(store) == ["red", "green"]


def test_the_contact_sheet_looks_like_the_page_on_any_screen(page: Page, tmp_path: Path) -> None:
    questions = [Question(n, key, key, "x.png") for n, key in enumerate(("a" * 200, "<b>&"), start=1)]
    (tmp_path / "questions.html").write_text(contact_sheet(1, questions, ["c" * 200, "<i>d"]), "utf-8")
    style = "const one = getComputedStyle(document.body); return [one.backgroundColor, one.fontFamily]"
    try:
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
            page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            page.browser.get((tmp_path / "questions.html").as_uri())
            assert page.run("return document.documentElement.scrollWidth") <= 360
            assert [one.text for one in page.elements("li:not(ol li)")] == ["c" * 200, "<i>d"]
            assert page.elements("figcaption")[1].text.split() == ["2", "<b>&"]
            sheet_style = page.run(style)
            image_questions(tmp_path / scheme, 1)
            with page.serving(tmp_path / scheme):
                assert page.run(style) == sheet_style
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_many_classes_are_searched_and_new_ones_can_be_named(page: Page, tmp_path: Path) -> None:
    classes = (*CLASSES, *(f"class {n}" for n in range(40)))
    store = image_questions(tmp_path, 3, allow_new_classes=True, classes=classes)
    with page.serving(tmp_path):
        page.answer("ss 17" + Keys.ENTER)
        page.answer(Keys.ENTER)  # an empty field: the guess
        field = page.browser.find_element(By.ID, "name-of-class")
        field.send_keys("okapi", Keys.ENTER)
        page.wait_for_state("complete")
        assert page.console_errors() == []
    assert labels(store) == ["class 17", "green", "okapi"]


def test_a_dispute_is_shown_and_resolved(page: Page, tmp_path: Path) -> None:
    store = image_questions(tmp_path, 1, rule="unanimous", min_annotators=2)
    store.receive([{"question": "r1/1", "word": "red", "annotator": "Ada"}], channel="page")
    store.receive([{"question": "r1/1", "word": "blue", "annotator": "Bob"}], channel="page")
    with page.serving(tmp_path, blind=True):
        assert "Ada chose red, Bob chose blue" in page.text("votes")
        assert not page.browser.find_element(By.ID, "guess").is_displayed()
        page.answer("1")  # confirms her answer: now it is Bob's turn
        page.wait_for_state("others")
        store.receive([{"question": "r1/1", "word": "red", "annotator": "Bob"}], channel="page")
        page.wait_for_state("complete")
        assert page.console_errors() == []
    assert labels(store) == ["red"]
