"""Helpers that drive the labelling page in a real browser."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from ducats.annotation import AnnotationStore
from ducats.annotation.page import server
from headless_browser import chromium as chromium
from headless_browser import needs_a_browser as needs_a_browser

TIMEOUT_SECONDS = 60


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> webdriver.Chrome:
    """A blank page: the previous test's page would keep polling a server that is gone."""
    chromium.get("about:blank")
    console_errors(chromium)
    return chromium


@pytest.fixture
def save_screenshot(browser: webdriver.Chrome, tmp_path: Path) -> Callable[[str], None]:
    """Save a screenshot as an artefact."""
    folder = Path(os.environ.get("DUCATS_ARTEFACTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def shoot(name: str) -> None:
        assert browser.save_screenshot(str(folder / f"{name}.png"))

    return shoot


class Server:
    """The page's server in a process of its own, forked: nothing needs to be imported again."""

    def __init__(
        self, run: Path, *, annotator: str = "Ada", blind: bool = False, token_file: Path | None = None
    ) -> None:
        host, token = "127.0.0.1", server.load_or_create_token(token_file)
        with server.open_socket(host, 0, run) as sock:
            self.url = server.page_url(sock, host, token)
            options = {"host": host, "token": token, "annotator": annotator, "blind": blind}
            fork = multiprocessing.get_context("fork")
            self.process = fork.Process(
                target=server.serve_page, args=(run, sock), kwargs=options, daemon=True
            )
            self.process.start()

    def kill(self) -> None:
        """Kill the process without cleanup, as when memory runs out."""
        self.process.kill()
        self.process.join()


@contextmanager
def serving(run: Path, **options: Any) -> Iterator[Server]:
    server = Server(run, **options)
    try:
        yield server
    finally:
        server.kill()


def wait_until(browser: webdriver.Chrome, condition: Callable[[], Any]) -> Any:
    return WebDriverWait(browser, TIMEOUT_SECONDS, poll_frequency=0.02).until(lambda _: condition())


def shown_question(browser: webdriver.Chrome) -> str:
    """Return the id of the visible question, or an empty string."""
    return str(browser.execute_script("return document.body.dataset.shown ?? ''"))


def page_state(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return document.body.dataset.state ?? ''"))


def element_text(browser: webdriver.Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).text


def press(browser: webdriver.Chrome, key: str) -> None:
    ActionChains(browser).send_keys(key).perform()


def answer(browser: webdriver.Chrome, key: str) -> None:
    """Press a key once the image is visible, and wait until the question changes."""
    before = wait_until(browser, lambda: shown_question(browser))
    press(browser, key)
    wait_until(browser, lambda: shown_question(browser) != before)


def open_page(browser: webdriver.Chrome, server: Server) -> None:
    browser.get(server.url)
    wait_until(browser, lambda: shown_question(browser))
    assert "token" not in browser.current_url


def is_saved(browser: webdriver.Chrome) -> bool:
    return element_text(browser, "saved").startswith("Saved")


def console_errors(browser: webdriver.Chrome) -> list[str]:
    """Return the entries of the browser's console log."""
    return [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]


def labels(store: AnnotationStore, number: int = 1) -> list[str | None]:
    return [status.word for status in store.statuses(number).values()]
