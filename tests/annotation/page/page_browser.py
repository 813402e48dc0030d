"""Helpers that drive the labelling page in a real browser."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from ducats.annotation import AnnotationStore
from ducats.annotation.page import server
from ducats.annotation.page.live import LiveModel
from headless_browser import chromium as chromium
from headless_browser import needs_a_browser as needs_a_browser

TIMEOUT_SECONDS = 60


@pytest.fixture
def page(chromium: webdriver.Chrome) -> "Page":
    """A blank page: the previous test's page would keep polling a server that is gone."""
    chromium.get("about:blank")
    page = Page(chromium)
    page.console_errors()
    return page


class Server:
    """The page's server in a process of its own, forked: nothing needs to be imported again."""

    def __init__(
        self,
        run: Path,
        *,
        annotator: str = "Ada",
        blind: bool = False,
        token_file: Path | None = None,
        people: tuple[str, ...] = (),
        live: LiveModel | None = None,
    ) -> None:
        host, token = "127.0.0.1", server.load_or_create_token(token_file)
        tokens = server.load_or_create_people(run / "people.json", people) if people else {}
        with server.open_socket(host, 0, run) as sock:
            self.url = server.page_url(sock, host, token)
            self.links = {name: server.page_url(sock, host, one) for one, name in tokens.items()}
            options = {
                "host": host,
                "token": token,
                "people": tokens,
                "annotator": annotator,
                "blind": blind,
                "accept_threshold": 0.5,
                "live": live,
            }
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


class Page:
    """The labelling page in the browser."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def open(self, server: Server) -> None:
        self.browser.get(server.url)
        self.wait_for_question()
        assert "token" not in self.browser.current_url

    @contextmanager
    def serving(self, run: Path, **options: Any) -> Iterator[Server]:
        """Serve a run and open its page."""
        with serving(run, **options) as server:
            self.open(server)
            yield server

    def wait(self, condition: Callable[[], Any]) -> Any:
        wait = WebDriverWait(self.browser, TIMEOUT_SECONDS, poll_frequency=0.02)
        return wait.until(lambda _: condition())

    @property
    def question(self) -> str:
        """The id of the visible question, or an empty string."""
        return str(self.browser.execute_script("return document.body.dataset.shown ?? ''"))

    @property
    def state(self) -> str:
        return str(self.browser.execute_script("return document.body.dataset.state ?? ''"))

    def wait_for_question(self, wanted: str | None = None) -> str:
        """Wait until this question, or any, is shown, and return its id."""

        def is_shown() -> str:
            shown = self.question
            return shown if wanted in (None, shown) else ""

        return str(self.wait(is_shown))

    def wait_for_state(self, state: str) -> None:
        self.wait(lambda: self.state == state)

    def text(self, name: str) -> str:
        return self.browser.find_element(By.ID, name).text

    def wait_for_text(self, name: str, text: str) -> None:
        self.wait(lambda: text in self.text(name))

    def elements(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        self.browser.find_element(By.CSS_SELECTOR, selector).click()

    def press(self, key: str) -> None:
        ActionChains(self.browser).send_keys(key).perform()

    def answer(self, *keys: str) -> None:
        """Press each key once the image is visible, and wait until the question changes."""
        for key in keys:
            before = self.wait_for_question()
            self.press(key)
            self.wait(lambda: self.question != before)  # noqa: B023 - called at once

    def is_saved(self) -> bool:
        return self.text("saved").startswith("Saved")

    def wait_until_saved(self) -> None:
        self.wait(self.is_saved)

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def loaded(self) -> str:
        """Return the addresses that the page has loaded."""
        return str(self.run("return performance.getEntriesByType('resource').map((one) => one.name)"))

    def console_errors(self) -> list[str]:
        """Return the new entries of the browser's console log."""
        return [entry["message"] for entry in self.browser.get_log("browser")]  # type: ignore[no-untyped-call]


def labels(store: AnnotationStore, number: int = 1) -> list[str | None]:
    return [status.word for status in store.statuses(number).values()]
