"""Helpers that drive the labelling page in a real browser, with the server started as by a user."""

import os
import re
import subprocess
import sys
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
    """A `ducats label` process."""

    def __init__(self, run: Path, *options: str) -> None:
        command = [sys.executable, "-m", "ducats", "label", str(run), "--no-open", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, "no address was printed"
        self.url = found.group()

    def kill(self) -> None:
        """Kill the process without cleanup, as when memory runs out."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(run: Path, *options: str) -> Iterator[Server]:
    server = Server(run, *options)
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
