"""The report page in a browser: wide and narrow, light and dark, on screen and in print."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_parser import EMPTY_SVG, write_confusion
from selenium import webdriver

from ducats.report import report_page
from headless_browser import chromium as chromium
from headless_browser import needs_a_browser
from synthetic_runs import write_pixel_run, write_run

pytestmark = needs_a_browser
WIDE, NARROW = 1280, 390
PAPER = 794  # A4


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write pages of a classification run, a segmentation run and several runs."""
    root = tmp_path_factory.mktemp("pages")
    images = write_run(root / "images", rounds=2, per_round=5, pool=60, source=30)
    pixels = write_pixel_run(root / "pixels", rounds=1, pool=3)
    names = [f"a_rather_long_name_{letter}" for letter in "abcdefg"]
    other = write_run(root / "other", "random", rounds=2, classes=names, snapshots=False)
    write_confusion(other, 20, len(names))
    pages = {
        name: report_page([run], root / f"{name}.html").page
        for name, run in {"images": images, "pixels": pixels}.items()
    }
    with pytest.MonkeyPatch.context() as patch:  # the figures are the same as on the first page
        patch.setattr("ducats.report.figures.render._render", lambda *_: EMPTY_SVG)
        return pages | {"several": report_page([images, other], root / "several.html").page}


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    console_messages(chromium)
    yield chromium
    cdp_command(chromium, "Emulation.setEmulatedMedia", media="", features=[])
    cdp_command(chromium, "Emulation.clearDeviceMetricsOverride")


def cdp_command(browser: webdriver.Chrome, name: str, **options: Any) -> Any:
    return browser.execute_cdp_cmd(name, options)


def show(
    browser: webdriver.Chrome,
    page: Path,
    width: int,
    scheme: str = "light",
    media: str = "",
    height: int = 900,
) -> None:
    """Open a page with this window size, colour scheme and media type."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    cdp_command(browser, "Emulation.setEmulatedMedia", media=media, features=features)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == NARROW}
    cdp_command(browser, "Emulation.setDeviceMetricsOverride", **size)
    browser.get(page.as_uri())


def console_messages(browser: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]  # type: ignore[no-untyped-call]


def evaluate_script(browser: webdriver.Chrome, script: str) -> Any:
    return browser.execute_script(f"return {script}")


OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true })"


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["images", "pixels", "several"])
def test_nothing_is_wider_than_the_window(
    browser: webdriver.Chrome, pages: dict[str, Path], name: str, width: int
) -> None:
    show(browser, pages[name], width)
    browser.execute_script(OPEN_ALL)
    assert evaluate_script(browser, "document.documentElement.scrollWidth") <= width
    unloaded = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert evaluate_script(browser, unloaded) == 0
    figures = "[...document.querySelectorAll('figure svg[role=img]')]"
    assert evaluate_script(browser, f"{figures}.every(s => s.clientWidth > 100)")
    assert console_messages(browser) == []
    if width == WIDE:  # on a desktop, no column is hidden
        boxes = "[...document.querySelectorAll('.scroll')]"
        assert evaluate_script(browser, f"{boxes}.length") > 4
        assert evaluate_script(browser, f"{boxes}.filter(b => b.scrollWidth > b.clientWidth + 1).length") == 0


@pytest.mark.parametrize("name", ["images", "pixels", "several"])
def test_the_first_screen_shows_verdict_curve_cost_and_next_steps(
    browser: webdriver.Chrome, pages: dict[str, Path], name: str
) -> None:
    show(browser, pages[name], WIDE, height=800)
    for part in ("h1", ".curve svg[role=img]", ".cost .tiles", ".next li:last-child"):
        box = evaluate_script(browser, f"document.querySelector('.summary {part}').getBoundingClientRect()")
        assert box["height"] > 10
        assert 0 <= box["top"] < box["bottom"] <= 800


def test_links_open_folds(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    """A link opens a part, and the section of a run around it."""
    for name in ("images", "several"):
        show(browser, pages[name], WIDE)
        costs = "document.querySelector('[id$=costs]')"
        folds = f"[{costs}.closest('.part'), {costs}.closest('details.run-section')].filter(Boolean)"
        assert not evaluate_script(browser, f"{folds}.some(d => d.open)")
        evaluate_script(browser, "document.querySelector('nav a[href$=costs]').click()")
        assert evaluate_script(browser, f"{folds}.every(d => d.open)")
        assert evaluate_script(browser, f"{costs}.offsetHeight") > 0


def test_dark_mode_has_dark_background_and_light_text(
    browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    found = {}
    for scheme in ("light", "dark"):
        show(browser, pages["images"], WIDE, scheme)
        style = "getComputedStyle(document.body)"
        figure = "getComputedStyle(document.querySelector('figure svg'))"
        ground, ink, lines = (
            evaluate_script(browser, what)
            for what in (f"{style}.backgroundColor", f"{style}.color", f"{figure}.color")
        )
        assert lines == ink  # figures draw in `currentColor`
        found[scheme] = (brightness(ground), brightness(ink))
    assert found["light"][0] > 200 > 100 > found["light"][1]
    assert found["dark"][0] < 60 < 200 < found["dark"][1]


def brightness(colour: str) -> float:
    """Return the brightness of ``rgb(1, 2, 3)``, from 0 to 255."""
    numbers = [float(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")]
    return sum(numbers) / 3


def test_collapsed_content_is_printed(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    height = "document.querySelector('details:has(> pre)').offsetHeight"
    show(browser, pages["images"], WIDE)
    assert evaluate_script(browser, height) < 60  # a line
    show(browser, pages["images"], PAPER, media="print")
    assert evaluate_script(browser, height) > 500
    assert evaluate_script(browser, "document.documentElement.scrollWidth") <= PAPER
    printed = base64.b64decode(cdp_command(browser, "Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
