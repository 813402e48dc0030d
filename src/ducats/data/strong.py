"""Strong augmentations, as in FixMatch: RandAugment (Cubuk et al., 2020) and cutout."""

import torch
from torch import Tensor

GREY = 0.5


def randaugment(shown: Tensor, operations: int, magnitude: int, seeds: Tensor) -> Tensor:
    """Apply torchvision's RandAugment to each image, with one seed per image.

    Args:
        shown: float32 ``(N, C, H, W)`` in [0, 1].
        operations: Number of operations per image.
        magnitude: 0 to 30.
        seeds: Integers ``(N,)``.
    """
    from torchvision.transforms import v2  # takes seconds to import

    change = v2.RandAugment(operations, magnitude)
    whole = (shown * 255).round().to(torch.uint8)
    changed = []
    with torch.random.fork_rng(devices=[]):  # RandAugment always uses the CPU's global generator
        for image, seed in zip(whole, seeds.tolist(), strict=True):
            torch.manual_seed(int(seed))
            changed.append(change(image))
    return torch.stack(changed).float().div_(255)


def cutout(shown: Tensor, share: float, centre: Tensor) -> Tensor:
    """Cover a square of each image with grey, clipped at the image border.

    Args:
        shown: float32 ``(N, C, H, W)``.
        share: Side of the square, as a fraction of the image's side.
        centre: Centre of the square, ``(N, 2)`` in [0, 1), as (row, column).
    """
    height, width = shown.shape[-2:]
    inside = []
    for side, place in zip((height, width), centre.unbind(1), strict=True):
        step = torch.arange(side, device=shown.device) + 0.5
        inside.append((step - place[:, None] * side).abs() <= share * side / 2)
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(hole, GREY, shown)
