"""The site is built without warnings, and needs nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_found_by_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    expected = {(page.parent / "index" if page.name == "README" else page).as_posix() for page in pages}
    assert {f"{page}.html" for page in expected} <= {name or "index.html" for name in found}


def test_settings_and_commands_are_complete(site: Path) -> None:
    from ducats.cli import app
    from ducats.config import Config

    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for section, values in Config().model_dump().items():
        for name in values if isinstance(values, dict) else ():
            assert f"<code>{section}.{name}</code>" in settings
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in app:
        if not name.startswith("-"):
            assert re.search(rf"<h[23] id=[^>]*>(ducats )?{name}\b", commands), name


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?https?:", text), page.name
        assert "data-md-component=source" not in text.replace('"', ""), "asks the host of the repository"
        assert not re.search(r"<link[^>]*rel=[\"']?stylesheet[\"']?[^>]*href=[\"']?https?:", text), page.name
