"""Parser of report pages: tables by name, text, links and images."""

import csv
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

import pytest

from ducats.report import report_page


class ParsedPage(HTMLParser):
    """Tables by ``data-table`` or class (best cells in asterisks), ids, links, images and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []  # ids of details that are open
        self._words: list[str] = []
        self._table = ""
        self._cell = self._best = False
        self._hidden = False
        self.feed(text)

    @property
    def words(self) -> str:
        """All text, with whitespace collapsed."""
        return " ".join(" ".join(self._words).split())

    def table(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a table as dicts by column title."""
        titles, *rows = self.tables[name]
        return [dict(zip(titles, row, strict=True)) for row in rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known[key] for key in ("href", "xlink:href") if key in known]
        self.images += [known["src"]] if tag == "img" else []
        if tag == "details" and "open" in known:
            self.open.append(known.get("id", ""))
        if tag == "table":
            self._table = known.get("data-table") or known.get("class", "")
            self.tables.setdefault(self._table, [])
        if tag == "tr":
            self.tables.setdefault(self._table, []).append([])
        if tag in ("td", "th"):
            self._best = "best" in known.get("class", "")
            self.tables[self._table][-1].append("")
            self._cell = True
        self._hidden = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            if self._best:
                self.tables[self._table][-1][-1] = f"*{self.tables[self._table][-1][-1]}*"
            self._cell = self._best = False
        if tag == "table":
            self._table = ""
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[self._table][-1][-1] += " ".join(data.split())
        if not self._hidden:
            self._words.append(data)


_T = TypeVar("_T")


def present(value: _T | None) -> _T:
    """Return a value that must not be None."""
    assert value is not None
    return value


def parse_report_page(*folders: Path, out: Path) -> ParsedPage:
    return ParsedPage(report_page(list(folders), out).page.read_text(encoding="utf-8"))


def write_confusion(folder: Path, epoch: int, classes: int) -> list[list[int]]:
    """Write a confusion matrix with ten samples per class; three of class 2 are predicted as class 0."""
    counts = [[10 if row == column else 0 for column in range(classes)] for row in range(classes)]
    counts[2][2], counts[2][0] = 7, 3
    path = folder / "confusion" / f"epoch-{epoch:03d}.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerow(["label", *range(classes)])
        csv.writer(file).writerows([row, *cells] for row, cells in enumerate(counts))
    return counts


EMPTY_SVG = b'<svg viewBox="0 0 360 180"></svg>'


@pytest.fixture
def no_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip rendering of figures, which takes most of the time of a page."""
    monkeypatch.setattr("ducats.report.figures.render._render", lambda *_: EMPTY_SVG)
    monkeypatch.setattr("ducats.report.figures.tsne._fit_tsne", lambda features: features[:, :2])
