"""Thumbnails saved by a run, scaled down for figures."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from ducats.errors import UserError
from ducats.figures.points import Array
from ducats.figures.style import INK

LONGEST = 72  # pixels on the longer side of a thumbnail


def load(path: Path, longest: int | None = LONGEST) -> Array:
    """Load an image as uint8 ``(height, width, 3)``, its longer side at most ``longest`` pixels."""
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise UserError(f"{path} is not a readable image ({error}); remove it") from error
    if longest is not None and max(image.size) > longest:
        image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return np.asarray(image)


def show(axes: Axes, picture: Path | Array | None, missing: str = "no image") -> None:
    """Show an image on axes, or the text ``missing`` if it is None."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(picture is None)
        spine.set_alpha(0.3)
    if picture is None:
        axes.text(
            0.5, 0.5, missing, ha="center", va="center", fontsize=7, color=INK, transform=axes.transAxes
        )
        axes.set_aspect("equal")
        return
    values = load(picture) if isinstance(picture, Path) else picture
    axes.imshow(values, interpolation="none")
