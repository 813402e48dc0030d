"""Figures become SVG for a page, or files; the same figure gives the same bytes."""

import base64
import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from ducats.figures.style import INK, STYLE

Draw = Callable[[Figure], None]
LARGE = 24_000  # bytes of a picture inside an SVG, from which on fewer colours will do
DPI = 150  # of points and pictures inside an SVG, and of a PNG
NAMELESS: dict[str, dict[str, Any]] = {  # neither date nor maker
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# A file of its own has no page whose colours it could follow.
ALONE = (
    "<style>svg{color:#1b1e24;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6e8ec;background:#14161a}}"
    "text{font-family:system-ui,sans-serif!important}</style>"
)


def svg(draw: Draw, size: tuple[float, float], key: str, title: str, description: str = "") -> str:
    """Draw an SVG element that can stand beside others in a page: no date, no links, ids of its own.

    Args:
        draw: puts everything on a figure.
        size: width and height in inches.
        key: what its ids begin with.
        title: says what it is to those who do not see it.
        description: tells them more.
    """
    text = _painted(draw, size, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = (
        re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
        .replace("xlink:href", "href")
        .replace(INK, "currentColor")
    )
    text = re.sub(
        r' id="image[0-9a-f]*"', "", text
    )  # two like pictures would share it, and nobody asks for it
    text = re.sub(r'data:image/png;base64,([^"]*)', _lighter, text)
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{key}-", text)
    start = text.index(">")
    head = re.sub(r' (width|height|version)="[^"]*"', "", text[:start])
    more = f"><desc>{html.escape(description)}</desc>" if description else ">"
    return f'{head} role="img" aria-label="{html.escape(title)}"{more}{text[start + 1 :]}'


def file(draw: Draw, size: tuple[float, float], kind: str, title: str, description: str = "") -> bytes:
    """A figure as a file's bytes: ``svg`` in the reader's light or dark, ``png`` and ``pdf`` on white."""
    if kind != "svg":
        return _painted(draw, size, kind)
    text = svg(draw, size, "figure", title, description)
    width, height = (round(72 * side) for side in size)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt"'
    start = text.index(">") + 1
    return f"{head}{text[4:start]}{ALONE}{text[start:]}".encode()


def _lighter(found: re.Match[str]) -> str:
    """An embedded picture that takes less room: a JPEG if it is opaque, else, if it is large, 256 colours."""
    before = base64.b64decode(found[1])
    kind, best, buffer = "png", before, io.BytesIO()
    with Image.open(io.BytesIO(before)) as opened:
        image = opened.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        image.convert("RGB").save(buffer, "jpeg", quality=88, subsampling=0)
        if 2 * len(buffer.getvalue()) < len(before):
            kind, best = "jpeg", buffer.getvalue()
    elif len(before) > LARGE:
        image.quantize(256, Image.Quantize.FASTOCTREE).save(buffer, "png", optimize=True)
        best = min(before, buffer.getvalue(), key=len)
    return f"data:image/{kind};base64,{base64.b64encode(best).decode('ascii')}"


def _painted(draw: Draw, size: tuple[float, float], kind: str) -> bytes:
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a reader's own matplotlibrc must not change a report
        matplotlib.rcParams.update(STYLE)
        # A browser sets the letters; that matplotlib's font lacks one of them does not matter there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        if kind == "svg":
            figure.patch.set_alpha(0)
            for axes in figure.axes:
                axes.patch.set_alpha(0)
        buffer = io.BytesIO()
        _lay_out(figure)
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=NAMELESS[kind])
    return buffer.getvalue()


def _lay_out(figure: Figure) -> None:
    """Give everything its place once: savefig would draw the whole figure a second time for it."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)
