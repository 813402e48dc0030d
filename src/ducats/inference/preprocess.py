"""Preprocessing of image files as in `ducats predict`, described as JSON and as Python code."""

from typing import Any, NamedTuple

from ducats.errors import UserError
from ducats.factory import make_views
from ducats.inference.trained import Trained

Size = tuple[int, int]


class Preprocess(NamedTuple):
    """Steps from an image file to a float array ``(channels, height, width)`` in [0, 1]."""

    channels: int
    stored: Size  # height and width after the first resize, which ignores the aspect ratio
    crop: tuple[int, int] | None  # top and left of the centre crop; None means no crop
    size: Size  # of the input; without a crop, images are resized again if it differs from `stored`

    def as_json(self) -> dict[str, Any]:
        """Return the input format and the ordered steps."""
        steps: list[dict[str, Any]] = [
            {"step": "open", "turned": "as EXIF says", "transparency": "on white", "bits": 8},
            {"step": "convert", "mode": _mode(self.channels)},
            {"step": "resize", "size": list(self.stored), "filter": "bicubic, antialiased (Pillow)"},
        ]
        if self.crop is not None:
            steps.append({"step": "crop", "top_left": list(self.crop), "size": list(self.size)})
        steps.append({"step": "divide", "by": 255})
        if self.crop is None and self.size != self.stored:
            steps.append(
                {"step": "resize", "size": list(self.size), "filter": "bilinear, antialiased, floats"}
            )
        return {
            "input": "images",
            "layout": "N, channels, height, width",
            "dtype": "float32",
            "range": [0, 1],
            "channels": self.channels,
            "size": list(self.size),
            "steps": steps,
            "normalisation": "inside the model",
        }

    def as_code(self) -> list[str]:
        """Return code lines that load the file ``image.png`` as the array ``images``."""
        (tall, wide), (height, width) = self.stored, self.size
        shape = (
            f"1, {tall}, {wide}, {self.channels}"
            if self.crop is None
            else f"1, {height}, {width}, {self.channels}"
        )
        lines = [
            f'image = ImageOps.exif_transpose(Image.open("image.png")).convert("{_mode(self.channels)}")',
            f"image = image.resize(({wide}, {tall}), Image.Resampling.BICUBIC)",
        ]
        if self.crop is not None:
            top, left = self.crop
            lines.append(f"image = image.crop(({left}, {top}, {left + width}, {top + height}))")
        lines.append(f"images = np.asarray(image, np.float32).reshape({shape}).transpose(0, 3, 1, 2) / 255")
        if self.crop is None and self.size != self.stored:
            resized = f"Image.fromarray(plane).resize(({width}, {height}), Image.Resampling.BILINEAR)"
            lines.append(f"images = np.stack([{resized} for plane in images[0]])[None]")
        return lines


def preprocess_of(trained: Trained) -> Preprocess:
    """Return the preprocessing of a run's test view; raise if it is random or keeps aspect ratios."""
    view = make_views(trained.config).test
    chance = view.crop in ("random", "resized") or view.flip or any(view.jitter) or view.cutout
    if chance or view.randaugment is not None or view.resize != "squash":
        raise UserError(
            "views.test of this run is random or depends on the aspect ratio of each image, so it cannot be "
            "exported; train with views.test.crop=center or none and views.test.resize=squash"
        )
    size = view.output_size(*trained.size)
    if view.crop == "none":
        return Preprocess(trained.channels, trained.size, None, size)
    # Halves are rounded to even, as in `data.views` and torchvision.
    top, left = (round((side - shown) / 2) for side, shown in zip(trained.size, size, strict=True))
    return Preprocess(trained.channels, trained.size, (top, left), size)


def _mode(channels: int) -> str:
    return "L" if channels == 1 else "RGB"
