"""Preprocessing of image files as in `ducats predict`: before the exported graph, and inside it."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from ducats.deploy.trained_model import TrainedModel
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange

_HeightWidth = tuple[int, int]


class Preprocessing(NamedTuple):
    """Steps from an image file to a float array ``(channels, height, width)`` in [0, 1]."""

    channels: int
    value_range: ValueRange | None  # values of black and white in files with more than 8 bits per value
    stored_size: _HeightWidth  # after the first resize, which ignores the aspect ratio
    crop_top_left: tuple[int, int] | None  # top and left of the centre crop; None means no crop
    size: _HeightWidth  # of the network's input

    @property
    def mode(self) -> str:
        """Pillow's name of the colours."""
        return "L" if self.channels == 1 else "RGB"

    @property
    def resizes_again(self) -> bool:
        """Whether images are resized from the stored size to another one."""
        return self.crop_top_left is None and self.size != self.stored_size

    def to_dict(self) -> dict[str, Any]:
        """Return the ordered steps before the graph and inside it."""
        opened = {
            **{"step": "open", "orientation": "by EXIF", "transparency": "on white", "frame": "first"},
            "range": self.value_range,
        }
        inside: list[dict[str, Any]] = [
            {"step": "resize", "size": self.stored_size, "filter": "bicubic, antialiased, 8 bits (Pillow)"}
        ]
        if self.crop_top_left is not None:
            inside.append({"step": "crop", "top_left": self.crop_top_left, "size": self.size})
        inside.append({"step": "divide", "by": 255})
        if self.resizes_again:
            inside.append({"step": "resize", "size": self.size, "filter": "bilinear, antialiased, floats"})
        inside.append({"step": "normalise"})
        return {
            "input": "images",
            "layout": "N, height, width, channels",
            "dtype": "uint8",
            "channels": self.channels,
            "before_the_graph": [opened, {"step": "convert", "mode": self.mode}],
            "in_the_graph": inside,
        }


def make_preprocessing(trained: TrainedModel) -> Preprocessing:
    """Return the preprocessing of a run's test view; raise if it cannot be exported."""
    view = trained.config.views.test
    is_random = view.crop in ("random", "random_resized") or view.flip or any(view.jitter) or view.cutout
    if is_random or view.randaugment is not None or view.resize != "squash":
        raise UserError(
            "views.test of this run is random or depends on the aspect ratio of each image, so it cannot be "
            "exported; train with views.test.crop=center or none and views.test.resize=squash"
        )
    if view.interpolation != "bicubic":
        raise UserError(
            "an exported model resizes images with a bicubic filter; train with "
            f"views.test.interpolation=bicubic, not {view.interpolation}"
        )
    size, top_left = view.output_size(*trained.size), None
    if view.crop == "center":
        # Halves are rounded to even, as in `data.views` and torchvision.
        top, left = (round((side - crop) / 2) for side, crop in zip(trained.size, size, strict=True))
        top_left = (top, left)
    return Preprocessing(trained.channels, trained.value_range, trained.size, top_left, size)


def normalisation(network: nn.Module) -> dict[str, list[float] | None]:
    """Return mean and std that a network of this library normalises images with; None if unknown."""
    values: tuple[Tensor | None, Tensor | None] = (
        getattr(network, "mean", None),
        getattr(network, "std", None),
    )
    if isinstance(scale := getattr(network, "scale", None), Tensor):  # (x - mean) / std = scale x + shift
        values = -network.get_buffer("shift") / scale, 1 / scale
    return {
        name: value.flatten().tolist() if isinstance(value, Tensor) else None
        for name, value in zip(("mean", "std"), values, strict=True)
    }
