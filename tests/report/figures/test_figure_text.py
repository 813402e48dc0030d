"""Text of figures: nothing is clipped or overlaps, enough ticks, no boxes in place of characters."""

import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder  # type: ignore[import-untyped]
from fontTools.pens.ttGlyphPen import TTGlyphPen  # type: ignore[import-untyped]
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ducats.report.figures import fonts, prepare_figure, save_figure
from ducats.report.figures.fonts import shorten_to_width, use_available_fonts, with_drawable_classes
from ducats.report.figures.style import LogTickLocator
from ducats.report.run_reader import read_run
from synthetic_runs import write_run

LONG_NAMES = ("refrigerator", "computer keyboard", "WWWWWWWWWWWWWWWW", "file cabinet")


def draw_figure(name: str, run: Path) -> Figure:
    """Draw a figure with its layout, as in a PNG."""
    prepared = prepare_figure(name, [read_run(run)])
    figure = Figure(figsize=prepared.size, layout="constrained")
    FigureCanvasAgg(figure)
    prepared.draw(figure)
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("per_round", [1, 10])
def test_gallery_titles_do_not_overlap(tmp_path: Path, per_round: int) -> None:
    run = write_run(tmp_path / "a", rounds=1, per_round=per_round, pool=60, source=20, classes=LONG_NAMES)
    figure = draw_figure("gallery", run)
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_visible()]
    assert len(boxes) == per_round
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    below = figure.texts[-1].get_window_extent()
    for box in (*boxes, below):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_names_are_shortened_at_their_end() -> None:
    assert shorten_to_width("desk  lamp", 100, 8) == "desk lamp"
    short = shorten_to_width("computer keyboard", 40, 8)
    assert short.startswith("comp")
    assert short.endswith("…")
    assert len(shorten_to_width("computer keyboard", 40, 8, bold=True)) < len(short)


@pytest.mark.parametrize(
    "limits", [(0.3, 2.0), (0.011, 0.55), (1e-9, 3.0), (1.1, 1.9), (4.0, 4.1), (0.2, 0.9)]
)
def test_logarithmic_axes_have_several_ticks(limits: tuple[float, float]) -> None:
    ticks = LogTickLocator(4).tick_values(*limits)
    assert all(limits[0] <= tick <= limits[1] for tick in ticks)
    assert 2 <= len(set(ticks)) <= 6


def test_uncertainties_have_several_ticks_and_a_complete_legend(tmp_path: Path) -> None:
    figure = draw_figure("uncertainties", write_run(tmp_path / "a", rounds=1, pool=60, source=20))
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = np.asarray(axis.get_majorticklocs())
        assert ((ticks >= low) & (ticks <= high)).sum() >= 2
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


# -- fonts -----------------------------------------------------------------------------------------------


@pytest.fixture
def font_list() -> Iterator[None]:
    """Hide the fonts of the system; forget those that the test adds."""
    manager, own = font_manager.fontManager, matplotlib.get_data_path()
    before = list(manager.ttflist)
    manager.ttflist = [font for font in before if font.fname.startswith(own)]
    fonts._font_of.cache_clear()
    yield
    manager.ttflist = before
    fonts._font_of.cache_clear()


def add_font(folder: Path, characters: str) -> None:
    """Write a font with squares as glyphs, and add it to matplotlib."""
    pen = TTGlyphPen(None)
    for step, point in zip(("moveTo", "lineTo", "lineTo"), ((0, 0), (0, 500), (500, 500)), strict=True):
        getattr(pen, step)(point)
    pen.closePath()
    names = {ord(character): f"u{ord(character)}" for character in characters}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys([".notdef", *names.values()], pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test Han", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path = folder / "test-han.ttf"
    builder.save(path)
    font_manager.fontManager.addfont(path)


@pytest.mark.usefixtures("font_list")
@pytest.mark.parametrize("installed", ["", "犬"])
def test_names_without_a_font_become_numbers(tmp_path: Path, installed: str) -> None:
    if installed:
        add_font(tmp_path, installed)
    folder = write_run(
        tmp_path / "a", rounds=1, per_round=3, pool=30, source=20, classes=("犬", "猫", "собака")
    )
    expected = ("犬" if installed else "class 0", "class 1", "собака")
    assert with_drawable_classes(read_run(folder)).classes == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns about each missing character
        save_figure("histogram", [read_run(folder)], tmp_path / "a.png")
    save_figure("histogram", [read_run(folder)], tmp_path / "a.svg")
    assert "猫" in (tmp_path / "a.svg").read_text(encoding="utf-8")  # the browser has fonts


@pytest.mark.usefixtures("font_list")
def test_other_characters_without_a_font_become_question_marks(tmp_path: Path) -> None:
    add_font(tmp_path, "犬")
    figure = Figure()
    text = figure.text(0, 0, "猫/犬 1.png")
    use_available_fonts(figure)
    assert text.get_text() == "?/犬 1.png"
    assert text.get_fontfamily() == ["DejaVu Sans", "Test Han"]
