"""Thumbnails saved by a run, scaled down for figures."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from ducats.report.figures.style import TEXT_COLOUR
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

MAX_THUMBNAIL_PIXELS = 72  # pixels on the longer side of a thumbnail


def load_rgb(path: Path, max_side: int | None = MAX_THUMBNAIL_PIXELS) -> AnyArray:
    """Load an image as uint8 ``(height, width, 3)``, its longer side at most ``max_side`` pixels."""
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise UserError(f"{path} is not a readable image ({error}); remove it") from error
    if max_side is not None and max(image.size) > max_side:
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    return np.asarray(image)


def show_image(axes: Axes, image: Path | AnyArray | None, missing_text: str = "no image") -> None:
    """Show an image on axes, or the text ``missing_text`` if it is None."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(image is None)
        spine.set_alpha(0.3)
    if image is None:
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": TEXT_COLOUR}
        axes.text(0.5, 0.5, missing_text, transform=axes.transAxes, **style)
        axes.set_aspect("equal")
        return
    values = load_rgb(image) if isinstance(image, Path) else image
    axes.imshow(values, interpolation="none")
