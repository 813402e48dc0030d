"""The comparison in a real browser: filter by mouse and keyboard without scripts, print view."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from synthetic_sweeps import write_page_without_sections, write_sweep_run

import headless_browser
from ducats.report.run_reader import find_runs
from headless_browser import needs_a_browser

pytestmark = needs_a_browser
chromium = headless_browser.chromium
METHODS = ("random", "duc", "a-method-with-a-rather-long-name")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep")
    for index, method in enumerate(METHODS):
        for task in ("Ar-Cl", "Cl-Ar", "Pr-Rw"):
            write_sweep_run(root, "duc", task, 0, 0.5 + 0.03 * index, name=method, folder=f"{task}-{method}")
    write_sweep_run(root, "duc", "Cl-Ar", 2, 0.6, finished=False)
    return write_page_without_sections(find_runs([root]), root / "page.html")


@pytest.fixture
def browser(chromium: webdriver.Chrome, page: Path) -> Iterator[webdriver.Chrome]:
    chromium.get_log("browser")  # type: ignore[no-untyped-call]  # forget those of other pages
    chromium.get(f"{page.as_uri()}#comparison")  # opens its fold
    yield chromium
    messages = chromium.get_log("browser")  # type: ignore[no-untyped-call]
    assert [entry for entry in messages if entry["level"] in ("SEVERE", "WARNING")] == []
    for command in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
        chromium.execute_cdp_cmd(command, {})


def visible_headers(browser: webdriver.Chrome) -> list[str]:
    """Return the visible column headers of the table."""
    found = browser.find_elements(By.CSS_SELECTOR, ".by-task thead th")
    return [head.text for head in found if head.is_displayed()]


def visible_captions(browser: webdriver.Chrome) -> list[str]:
    """Return the captions of the visible figures."""
    found = browser.find_elements(By.CSS_SELECTOR, ".comparison figcaption")
    return [caption.text for caption in found if caption.is_displayed()]


ALL_HEADERS = ["Method", "Ar→Cl", "Cl→Ar", "Pr→Rw", "Average", "Seeds", "Labels", "Seconds"]


def test_selecting_a_task_hides_the_others(browser: webdriver.Chrome) -> None:
    assert visible_headers(browser) == ALL_HEADERS
    assert len(visible_captions(browser)) == 6  # three tasks, ranks, seconds, memory
    browser.find_element(By.CSS_SELECTOR, "label:has(#task-1)").click()
    assert visible_headers(browser) == ["Method", "Cl→Ar"]
    assert visible_captions(browser) == ["Cl→Ar: 3 methods, 3 runs"]
    assert browser.find_element(By.CSS_SELECTOR, ".missing tbody tr").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "label:has(#task-2)").click()
    assert visible_captions(browser) == ["Pr→Rw: 3 methods, 3 runs"]
    assert not browser.find_element(By.CSS_SELECTOR, ".missing tbody tr").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "label:has(#task-all)").click()
    assert visible_headers(browser) == ALL_HEADERS


def test_the_filter_works_with_the_keyboard(browser: webdriver.Chrome) -> None:
    first = browser.find_element(By.ID, "task-all")
    first.send_keys(Keys.ARROW_RIGHT)
    assert visible_headers(browser) == ["Method", "Ar→Cl"]
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert visible_headers(browser) == ALL_HEADERS


def test_print_shows_all_tasks(browser: webdriver.Chrome) -> None:
    browser.find_element(By.CSS_SELECTOR, "label:has(#task-1)").click()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert visible_headers(browser) == ALL_HEADERS
    assert len(visible_captions(browser)) == 6
    assert not browser.find_element(By.CSS_SELECTOR, ".filter").is_displayed()


@pytest.mark.parametrize("width", [1280, 390])
def test_wide_tables_scroll_within_their_box(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide: int = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    if width == 390:
        box = browser.find_element(By.CSS_SELECTOR, ".comparison .scroll")
        browser.execute_script("arguments[0].scrollLeft = 10000", box)
        name = box.find_element(By.CSS_SELECTOR, "tbody th")
        assert abs(name.rect["x"] - box.rect["x"]) < 3  # the name of a method stays visible
