"""Preprocessing of image files as in `ducats predict`, described as JSON and as Python code."""

from typing import Any, NamedTuple

from ducats.deploy.trained_model import TrainedModel
from ducats.utils.errors import UserError

_HeightWidth = tuple[int, int]


class Preprocessing(NamedTuple):
    """Steps from an image file to a float array ``(channels, height, width)`` in [0, 1]."""

    channels: int
    resized: _HeightWidth  # height and width after the first resize, which ignores the aspect ratio
    crop_top_left: tuple[int, int] | None  # top and left of the centre crop; None means no crop
    size: _HeightWidth  # of the input; without a crop, images are resized again if it differs from `resized`

    def to_dict(self) -> dict[str, Any]:
        """Return the input format and the ordered steps."""
        steps: list[dict[str, Any]] = [
            {"step": "open", "orientation": "by EXIF", "transparency": "on white", "bits": 8},
            {"step": "convert", "mode": _pil_mode(self.channels)},
            {"step": "resize", "size": list(self.resized), "filter": "bicubic, antialiased (Pillow)"},
        ]
        if self.crop_top_left is not None:
            steps.append({"step": "crop", "top_left": list(self.crop_top_left), "size": list(self.size)})
        steps.append({"step": "divide", "by": 255})
        if self.crop_top_left is None and self.size != self.resized:
            smooth = "bilinear, antialiased, floats"
            steps.append({"step": "resize", "size": list(self.size), "filter": smooth})
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

    def to_code(self) -> list[str]:
        """Return code lines that load the file ``image.png`` as the array ``images``."""
        (resized_height, resized_width), (height, width) = self.resized, self.size
        pixels_height, pixels_width = self.resized if self.crop_top_left is None else self.size
        shape = f"1, {pixels_height}, {pixels_width}, {self.channels}"
        lines = [
            f'image = ImageOps.exif_transpose(Image.open("image.png")).convert("{_pil_mode(self.channels)}")',
            f"image = image.resize(({resized_width}, {resized_height}), Image.Resampling.BICUBIC)",
        ]
        if self.crop_top_left is not None:
            top, left = self.crop_top_left
            lines.append(f"image = image.crop(({left}, {top}, {left + width}, {top + height}))")
        lines.append(f"images = np.asarray(image, np.float32).reshape({shape}).transpose(0, 3, 1, 2) / 255")
        if self.crop_top_left is None and self.size != self.resized:
            resized = f"Image.fromarray(plane).resize(({width}, {height}), Image.Resampling.BILINEAR)"
            lines.append(f"images = np.stack([{resized} for plane in images[0]])[None]")
        return lines


def make_preprocessing(trained: TrainedModel) -> Preprocessing:
    """Return the preprocessing of a run's test view; raise if it is random or keeps aspect ratios."""
    view = trained.config.views.test
    is_random = view.crop in ("random", "random_resized") or view.flip or any(view.jitter) or view.cutout
    if is_random or view.randaugment is not None or view.resize != "squash":
        raise UserError(
            "views.test of this run is random or depends on the aspect ratio of each image, so it cannot be "
            "exported; train with views.test.crop=center or none and views.test.resize=squash"
        )
    size = view.output_size(*trained.size)
    if view.crop == "none":
        return Preprocessing(trained.channels, trained.size, None, size)
    # Halves are rounded to even, as in `data.views` and torchvision.
    top, left = (round((side - crop_side) / 2) for side, crop_side in zip(trained.size, size, strict=True))
    return Preprocessing(trained.channels, trained.size, (top, left), size)


def _pil_mode(channels: int) -> str:
    return "L" if channels == 1 else "RGB"
