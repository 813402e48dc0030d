"""Render figures as SVG elements or as files; the output is deterministic."""

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

from ducats.report.figures.fonts import use_available_fonts
from ducats.report.figures.style import MATPLOTLIB_STYLE, TEXT_COLOUR

DrawFunction = Callable[[Figure], None]
MAX_FULL_COLOUR_BYTES = 24_000  # bytes; larger images inside an SVG are reduced to 256 colours
RASTER_DPI = 150  # of rasterised points and images inside an SVG, and of a PNG
REPRODUCIBLE_METADATA: dict[str, dict[str, Any]] = {  # no date and no software version
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# Colours and font of an SVG file, which has no surrounding page.
STANDALONE_SVG_STYLE = (
    "<style>svg{color:#1b1e24;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6e8ec;background:#14161a}}"
    "text{font-family:system-ui,sans-serif!important}</style>"
)


def render_svg(
    draw: DrawFunction, size: tuple[float, float], id_prefix: str, title: str, description: str = ""
) -> str:
    """Render an SVG element for inlining: no date, no links, unique ids.

    Args:
        size: width and height in inches.
        id_prefix: prefix of all ids.
        title: text for ``aria-label``.
        description: text for ``<desc>``.
    """
    text = _render(draw, size, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = (
        re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
        .replace("xlink:href", "href")
        .replace(TEXT_COLOUR, "currentColor")
    )
    # Identical images would share an id; nothing refers to it.
    text = re.sub(r' id="image[0-9a-f]*"', "", text)
    text = re.sub(r'data:image/png;base64,([^"]*)', _compress_image, text)
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{id_prefix}-", text)
    start = text.index(">")
    head = re.sub(r' (width|height|version)="[^"]*"', "", text[:start])
    desc_element = f"><desc>{html.escape(description)}</desc>" if description else ">"
    return f'{head} role="img" aria-label="{html.escape(title)}"{desc_element}{text[start + 1 :]}'


def render_file(
    draw: DrawFunction, size: tuple[float, float], file_format: str, title: str, description: str = ""
) -> bytes:
    """Render a file: ``svg`` follows the light or dark colour scheme, ``png`` and ``pdf`` are white."""
    if file_format != "svg":
        return _render(draw, size, file_format)
    text = render_svg(draw, size, "figure", title, description)
    width, height = (round(72 * side) for side in size)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt"'
    start = text.index(">") + 1
    return f"{head}{text[4:start]}{STANDALONE_SVG_STYLE}{text[start:]}".encode()


def _compress_image(match: re.Match[str]) -> str:
    """Compress an embedded image: JPEG if opaque, else 256 colours if it is large."""
    original = base64.b64decode(match[1])
    image_format, smallest, buffer = "png", original, io.BytesIO()
    with Image.open(io.BytesIO(original)) as opened:
        image = opened.convert("RGBA")
    if image.getchannel("A").getextrema()[0] == 255:
        image.convert("RGB").save(buffer, "jpeg", quality=88, subsampling=0)
        if 2 * len(buffer.getvalue()) < len(original):
            image_format, smallest = "jpeg", buffer.getvalue()
    elif len(original) > MAX_FULL_COLOUR_BYTES:
        image.quantize(256, Image.Quantize.FASTOCTREE).save(buffer, "png", optimize=True)
        smallest = min(original, buffer.getvalue(), key=len)
    return f"data:image/{image_format};base64,{base64.b64encode(smallest).decode('ascii')}"


def _render(draw: DrawFunction, size: tuple[float, float], file_format: str) -> bytes:
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the output
        matplotlib.rcParams.update(MATPLOTLIB_STYLE)
        # The browser renders the text, so glyphs missing from matplotlib's font do not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        if file_format != "svg":
            use_available_fonts(figure)
        else:
            figure.patch.set_alpha(0)
            for axes in figure.axes:
                axes.patch.set_alpha(0)
        buffer = io.BytesIO()
        _apply_layout(figure)
        figure.savefig(
            buffer, format=file_format, dpi=RASTER_DPI, metadata=REPRODUCIBLE_METADATA[file_format]
        )
    return buffer.getvalue()


def _apply_layout(figure: Figure) -> None:
    """Run the layout once; savefig would draw the whole figure a second time for it."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)
