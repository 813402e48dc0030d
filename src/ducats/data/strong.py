"""Strong changes of a view: RandAugment (Cubuk et al., 2020) and a cut-out, as FixMatch uses them."""

import torch
from torch import Tensor

GREY = 0.5


def randaugment(shown: Tensor, operations: int, magnitude: int, seeds: Tensor) -> Tensor:
    """A few operations of torchvision's RandAugment on each image, drawn by its own seed.

    Args:
        shown: float32 ``(N, C, H, W)`` in [0, 1].
        operations: how many on each image.
        magnitude: their strength, 0 to 30.
        seeds: ``(N,)`` whole numbers: an image's changes follow from its own.
    """
    from torchvision.transforms import v2  # takes seconds to import

    change = v2.RandAugment(operations, magnitude)
    whole = (shown * 255).round().to(torch.uint8)
    changed = []
    with torch.random.fork_rng(devices=[]):  # it draws from the CPU's global generator, and takes no other
        for image, seed in zip(whole, seeds.tolist(), strict=True):
            torch.manual_seed(int(seed))
            changed.append(change(image))
    return torch.stack(changed).float().div_(255)


def cutout(shown: Tensor, share: float, centre: Tensor) -> Tensor:
    """A grey square in each image, cut at the border.

    Args:
        shown: float32 ``(N, C, H, W)``.
        share: its side, as a share of the image's.
        centre: ``(N, 2)`` in [0, 1): where its middle is, from the top and from the left.
    """
    height, width = shown.shape[-2:]
    inside = []
    for side, place in zip((height, width), centre.unbind(1), strict=True):
        step = torch.arange(side, device=shown.device) + 0.5
        inside.append((step - place[:, None] * side).abs() <= share * side / 2)
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(hole, GREY, shown)
