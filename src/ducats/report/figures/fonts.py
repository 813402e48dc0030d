"""Fonts for text that matplotlib's default font lacks, e.g. Chinese class names, and text that fits a width.

Only files with drawn text (PNG, PDF) need this. An SVG keeps its text, and the browser chooses the font.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from ducats.report.run_reader import Run
from ducats.runfolder.class_changes import ClassList

DEFAULT_FONT = "DejaVu Sans"  # included in matplotlib
# Tried first, in this order; then all other installed fonts.
PREFERRED_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "PingFang SC"),
    *("Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "WenQuanYi Zen Hei", "Noto Sans"),
)
UNKNOWN_CHARACTER = "?"


def with_drawable_classes(run: Run) -> Run:
    """Return the run with numbers in place of class names that no installed font can draw."""
    if all(_is_drawable(name) for name in run.classes):
        return run
    names = [name if _is_drawable(name) else f"class {n}" for n, name in enumerate(run.classes)]
    return replace(run, class_list=ClassList(tuple(names)))


def use_available_fonts(figure: Figure) -> None:
    """Set the fonts of all text on a figure; replace characters that no installed font has."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        fonts = {character: _font_of(character) for character in text.get_text()}
        fallbacks = sorted({font for font in fonts.values() if font and font != DEFAULT_FONT})
        if fallbacks:
            text.set_fontfamily([DEFAULT_FONT, *fallbacks])
        if not all(fonts.values()):
            text.set_text("".join(c if fonts[c] else UNKNOWN_CHARACTER for c in text.get_text()))


def shorten_to_width(text: str, max_points: float, font_size: float, *, bold: bool = False) -> str:
    """Shorten a text at its end, so that it is not wider than ``max_points``."""
    text = " ".join(text.split())
    font = FontProperties(family=DEFAULT_FONT, size=font_size, weight="bold" if bold else "normal")

    def width(shown: str) -> float:
        return float(TextToPath().get_text_width_height_descent(shown, font, ismath=False)[0])

    shown = text
    while text and width(shown) > max_points:
        text = text[:-1]
        shown = f"{text.rstrip()}…"
    return shown


def _is_drawable(text: str) -> bool:
    return all(map(_font_of, text))


@cache
def _font_of(character: str) -> str:
    """Return the name of a font with this character; empty if there is none."""
    if character.isspace() or ord(character) in _default_characters():
        return DEFAULT_FONT
    return next((name for name, path in _installed_fonts() if ord(character) in _characters(path)), "")


@cache
def _default_characters() -> frozenset[int]:
    return _characters(font_manager.findfont(DEFAULT_FONT))


def _installed_fonts() -> Sequence[tuple[str, str]]:
    """Return name and path of the installed fonts, the preferred ones first; without matplotlib's own."""
    own = Path(matplotlib.get_data_path())
    paths: Mapping[str, str] = {
        font.name: font.fname
        for font in reversed(font_manager.fontManager.ttflist)
        if font.style == "normal" and own not in Path(font.fname).parents
    }
    ranks = {name: rank for rank, name in enumerate(PREFERRED_FONTS)}
    return sorted(paths.items(), key=lambda font: (ranks.get(font[0], len(ranks)), font))


@cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # an unreadable font file
        return frozenset()
