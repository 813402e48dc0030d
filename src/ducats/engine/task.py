"""Task settings: annotation unit, label resolution, evaluation."""

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
    """Annotation unit and evaluation in segmentation; unused in classification."""

    unit: Unit = field(default_factory=Unit)
    resolution: Resolution = "network"  # of the grid in which pixels are labelled and counted
    fill: Fill = "cell"  # how labels on the original grid are mapped to the network's grid
    twice: bool = False  # upsample to the original grid via the network's input grid, as published
    measured_at: Resolution = "original"
    flip: bool = False  # average with the output for the mirrored image
    star_without: tuple[str, ...] = ()  # classes excluded from mIoU*

    def __post_init__(self) -> None:
        for name, known in (("resolution", Resolution), ("measured_at", Resolution), ("fill", Fill)):
            if getattr(self, name) not in get_args(known):
                raise UserError(f"{name} must be {' or '.join(get_args(known))}, not {getattr(self, name)!r}")
        if self.unit.name not in UNITS:
            raise UserError(f"unit must be one of {', '.join(UNITS)}, not {self.unit.name!r}")

    @property
    def whole_images(self) -> bool:
        """Whether an image is labelled as a whole, with all of its pixels."""
        return self.unit.name == "image"


def bought_sizes(images: Images, resolution: Resolution) -> torch.Tensor:
    """Return height and width of each image's label grid: int64 ``(N, 2)``."""
    if resolution == "original" and images.sizes is not None:
        return images.sizes
    return torch.tensor([list(images.pixels.shape[-2:])]).expand(len(images), 2)


def headline(source: Domain) -> str:
    """Return the name of the metric that reports rank by."""
    return "mean_iou" if source.of_pixels else "accuracy"
