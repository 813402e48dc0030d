"""Headless Chromium for tests of HTML pages."""

import atexit
import shutil
from functools import cache

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM_PATH, CHROMEDRIVER_PATH = (
    shutil.which("chromium") or shutil.which("google-chrome"),
    shutil.which("chromedriver"),
)
needs_a_browser = pytest.mark.skipif(
    CHROMIUM_PATH is None or CHROMEDRIVER_PATH is None,
    reason="no browser found; run: apt-get install chromium chromium-driver",
)


@cache
def _start_chromium() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM_PATH)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,860")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER_PATH))
    atexit.register(driver.quit)
    return driver


@pytest.fixture(scope="session")
def chromium() -> webdriver.Chrome:
    """One browser for all modules of a process."""
    return _start_chromium()
