"""What the loop must be told about a task; all else is the same for images and pixels."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from ducats.domain import Domain, Images
from ducats.errors import UserError
from ducats.units import Unit

Resolution = Literal["network", "original"]
Fill = Literal["cell", "nearest"]
UNITS = ("pixel", "region", "superpixel", "image")


@dataclass(frozen=True)
class Task:
    """What is bought where pixels have labels, and how maps are measured; images need none of it."""

    unit: Unit = field(default_factory=Unit)
    resolution: Resolution = "network"  # of the grid in which pixels are bought and counted
    fill: Fill = "cell"  # how labels of the original grid reach the network's
    twice: bool = False  # interpolate to the original grid by way of the network's, as published
    measured_at: Resolution = "original"
    flip: bool = False  # average with what is said of the mirror image
    star_without: tuple[str, ...] = ()  # classes left out of mIoU*

    def __post_init__(self) -> None:
        for name, known in (("resolution", Resolution), ("measured_at", Resolution), ("fill", Fill)):
            if getattr(self, name) not in get_args(known):
                raise UserError(f"{name} is {' or '.join(get_args(known))}, not {getattr(self, name)!r}")
        if self.unit.name not in UNITS:
            raise UserError(f"what is bought is {', '.join(UNITS)}, not {self.unit.name!r}")

    @property
    def whole_images(self) -> bool:
        """Whether images are bought one by one, with all of their pixels."""
        return self.unit.name == "image"


def bought_sizes(images: Images, resolution: Resolution) -> torch.Tensor:
    """Height and width of the grid in which each image's pixels are bought: int64 ``(N, 2)``."""
    if resolution == "original" and images.sizes is not None:
        return images.sizes
    return torch.tensor([list(images.pixels.shape[-2:])]).expand(len(images), 2)


def headline(source: Domain) -> str:
    """The metric that reports rank by."""
    return "mean_iou" if source.of_pixels else "accuracy"
