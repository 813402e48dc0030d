"""Label grids and the headline metric of a task."""

import torch

from ducats.data.domain import Domain, Images
from ducats.settings import GridResolution


def label_grid_sizes(images: Images, resolution: GridResolution) -> torch.Tensor:
    """Return height and width of each image's label grid: int64 ``(N, 2)``."""
    if resolution == "original" and images.original_sizes is not None:
        return images.original_sizes
    return torch.tensor([list(images.pixels.shape[-2:])]).expand(len(images), 2)


def headline_metric_of(source: Domain) -> str:
    """Return the name of the metric that reports rank by."""
    return "mean_iou" if source.per_pixel else "accuracy"
