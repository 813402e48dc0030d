"""Task settings: annotation unit, label resolution, evaluation."""

from dataclasses import dataclass, field
from typing import get_args

import torch

from ducats.acquisition.units import Unit
from ducats.data.domain import Domain, Images
from ducats.ledger import LabelDownsampling
from ducats.runfolder.pool_file import GridResolution
from ducats.utils.errors import UserError

UNIT_NAMES = ("pixel", "region", "superpixel", "image")


@dataclass(frozen=True)
class TaskOptions:
    """Annotation unit and evaluation in segmentation; unused in classification."""

    unit: Unit = field(default_factory=Unit)
    resolution: GridResolution = "network"  # of the grid in which pixels are labelled and counted
    label_downsampling: LabelDownsampling = "cell"  # from the labels' original grid to the network's grid
    two_step_upsampling: bool = False  # reach the original grid via the network's input grid, as published
    evaluated_at: GridResolution = "original"
    average_flipped: bool = False  # average with the output for the mirrored image
    miou_star_exclude: tuple[str, ...] = ()  # classes excluded from mIoU*

    def __post_init__(self) -> None:
        for name, known in (
            ("resolution", GridResolution),
            ("evaluated_at", GridResolution),
            ("label_downsampling", LabelDownsampling),
        ):
            if getattr(self, name) not in get_args(known):
                raise UserError(f"{name} must be {' or '.join(get_args(known))}, not {getattr(self, name)!r}")
        if self.unit.name not in UNIT_NAMES:
            raise UserError(f"unit must be one of {', '.join(UNIT_NAMES)}, not {self.unit.name!r}")

    @property
    def labels_whole_images(self) -> bool:
        """Whether an image is labelled as a whole, with all of its pixels."""
        return self.unit.name == "image"


def label_grid_sizes(images: Images, resolution: GridResolution) -> torch.Tensor:
    """Return height and width of each image's label grid: int64 ``(N, 2)``."""
    if resolution == "original" and images.original_sizes is not None:
        return images.original_sizes
    return torch.tensor([list(images.pixels.shape[-2:])]).expand(len(images), 2)


def headline_metric_of(source: Domain) -> str:
    """Return the name of the metric that reports rank by."""
    return "mean_iou" if source.per_pixel else "accuracy"
