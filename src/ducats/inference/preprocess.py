"""How an image file becomes a model's input, as `ducats predict` does it: for programs, and for people."""

from typing import Any, NamedTuple

from ducats.assemble import make_views
from ducats.errors import UserError
from ducats.inference.trained import Trained

Size = tuple[int, int]


class Preprocess(NamedTuple):
    """From a file to ``(channels, height, width)`` in [0, 1]."""

    channels: int
    stored: Size  # height and width that a file is squashed to
    crop: tuple[int, int] | None  # top and left of the middle that is cut out; None: nothing is cut
    size: Size  # of the input; where nothing is cut and it is not the stored one, resized once more

    def as_json(self) -> dict[str, Any]:
        """Each step with its numbers, in order."""
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
        """Lines that make ``images`` of the file ``image.png``."""
        (tall, wide), (height, width) = self.stored, self.size
        shape = (
            f"1, {tall}, {wide}, {self.channels}"
            if self.crop is None
            else f"1, {height}, {width}, {self.channels}"
        )
        lines = [
            f'picture = ImageOps.exif_transpose(Image.open("image.png")).convert("{_mode(self.channels)}")',
            f"picture = picture.resize(({wide}, {tall}), Image.Resampling.BICUBIC)",
        ]
        if self.crop is not None:
            top, left = self.crop
            lines.append(f"picture = picture.crop(({left}, {top}, {left + width}, {top + height}))")
        lines.append(f"images = np.asarray(picture, np.float32).reshape({shape}).transpose(0, 3, 1, 2) / 255")
        if self.crop is None and self.size != self.stored:
            resized = f"Image.fromarray(plane).resize(({width}, {height}), Image.Resampling.BILINEAR)"
            lines.append(f"images = np.stack([{resized} for plane in images[0]])[None]")
        return lines


def preprocess_of(trained: Trained) -> Preprocess:
    """What a run's test view does; refuse one that looks at an image differently each time."""
    view = make_views(trained.config).test
    chance = view.crop in ("random", "resized") or view.flip or any(view.jitter) or view.cutout
    if chance or view.randaugment is not None or view.resize != "squash":
        raise UserError(
            "views.test of this run is left to chance, or follows each image's own shape, so no file can say "
            "what the model should be shown: train with views.test.crop=center or none, resize=squash"
        )
    size = view.sides(*trained.size)
    if view.crop == "none":
        return Preprocess(trained.channels, trained.size, None, size)
    # Halves are rounded to even numbers, as `data.views` and torchvision do.
    top, left = (round((side - shown) / 2) for side, shown in zip(trained.size, size, strict=True))
    return Preprocess(trained.channels, trained.size, (top, left), size)


def _mode(channels: int) -> str:
    return "L" if channels == 1 else "RGB"
