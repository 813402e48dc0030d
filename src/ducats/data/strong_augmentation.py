"""Strong augmentations, as in FixMatch: RandAugment (Cubuk et al., 2020) and cutout."""

import torch
from torch import Tensor

CUTOUT_GREY = 0.5


def randaugment(images: Tensor, n_operations: int, magnitude: int, seeds: Tensor) -> Tensor:
    """Apply torchvision's RandAugment to images in [0, 1], with one seed per image and magnitude 0 to 30."""
    from torchvision.transforms import v2  # takes seconds to import

    transform = v2.RandAugment(n_operations, magnitude)
    uint8_images = (images * 255).round().to(torch.uint8)
    augmented = []
    with torch.random.fork_rng(devices=[]):  # RandAugment always uses the CPU's global generator
        for image, seed in zip(uint8_images, seeds.tolist(), strict=True):
            torch.manual_seed(int(seed))
            augmented.append(transform(image))
    return torch.stack(augmented).float().div_(255)


def cutout(images: Tensor, side_fraction: float, centre: Tensor) -> Tensor:
    """Cover a square of each image with grey, clipped at the image border.

    Args:
        side_fraction: Side of the square, as a fraction of the image's side.
        centre: Centre of the square, ``(N, 2)`` in [0, 1), as (row, column).
    """
    height, width = images.shape[-2:]
    axis_masks = []
    for side, position in zip((height, width), centre.unbind(1), strict=True):
        pixel_centres = torch.arange(side, device=images.device) + 0.5
        axis_masks.append((pixel_centres - position[:, None] * side).abs() <= side_fraction * side / 2)
    mask = axis_masks[0][:, None, :, None] & axis_masks[1][:, None, None, :]
    return torch.where(mask, CUTOUT_GREY, images)
