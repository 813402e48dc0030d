"""Views: how stored images become a model's input. Whole batches at once, each image with its own luck."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ATTEMPTS = 10  # of RandomResizedCrop to find a box that fits, as in torchvision


@dataclass(frozen=True)
class View:
    """Crop, flip, colour; see ``config.View`` for the meaning of each field."""

    crop: Literal["none", "center", "random", "resized"] = "none"
    size: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    pad: int = 0
    flip: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def look(images: Tensor, view: View, generator: torch.Generator) -> Tensor:
    """Show images through a view: uint8 ``(N, C, H, W)`` to float32 ``(N, C, size, size)`` in [0, 1]."""
    size = view.size or images.shape[-1]
    if view.crop == "resized":
        shown = resized_crop(images, view, size, generator)
    elif view.crop == "random":
        shown = random_crop(images, size, view.pad, generator).float() / 255
    elif view.crop == "center":
        shown = center_crop(images, size).float() / 255
    else:
        shown = images.float() / 255
        if size != images.shape[-1]:
            shown = F.interpolate(shown, (size, size), mode="bilinear", antialias=True)
    if view.flip:
        turned = torch.rand(len(shown), generator=generator) < view.flip
        shown = torch.where(turned.to(shown.device)[:, None, None, None], shown.flip(-1), shown)
    return color_jitter(shown, view.jitter, generator) if any(view.jitter) else shown


def center_crop(images: Tensor, size: int) -> Tensor:
    """Cut the middle out."""
    top, left = ((side - size) // 2 for side in images.shape[-2:])
    if top < 0 or left < 0:
        raise ValueError(f"a crop of {size} does not fit into images of {tuple(images.shape[-2:])}")
    return images[..., top : top + size, left : left + size]


def random_crop(images: Tensor, size: int, pad: int, generator: torch.Generator) -> Tensor:
    """Cut a square out of each image, each at its own place; ``pad`` repeats the edge first."""
    if pad:
        images = F.pad(images.float(), (pad,) * 4, mode="replicate").to(images.dtype)
    count, _, height, width = images.shape
    if size > height or size > width:
        raise ValueError(f"a crop of {size} does not fit into images of {(height, width)}")
    top = torch.randint(0, height - size + 1, (count, 1), generator=generator)
    left = torch.randint(0, width - size + 1, (count, 1), generator=generator)
    rows, columns = (start + torch.arange(size) for start in (top, left))
    which = torch.arange(count)[:, None, None]
    cut = images[which, :, rows[:, :, None], columns[:, None, :]]  # (N, size, size, C)
    return cut.permute(0, 3, 1, 2)


def resized_crop(images: Tensor, view: View, size: int, generator: torch.Generator) -> Tensor:
    """Cut a box of random place, area and shape out of each image and resize it (RandomResizedCrop)."""
    height, width = images.shape[-2:]
    boxes = crop_boxes(len(images), height, width, view.scale, view.ratio, generator)
    top, left, tall, wide = (side.to(images.device) for side in boxes.unbind(1))
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0], theta[:, 1, 1] = wide / width, tall / height
    theta[:, 0, 2], theta[:, 1, 2] = (2 * left + wide) / width - 1, (2 * top + tall) / height - 1
    grid = F.affine_grid(theta, [len(images), 1, size, size], align_corners=False)
    return F.grid_sample(images.float() / 255, grid, padding_mode="border", align_corners=False)


def crop_boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Boxes ``(count, 4)`` as top, left, height, width, drawn by torchvision's rule."""
    area = height * width * _between(*scale, (count, ATTEMPTS), generator)
    low, high = (math.log(side) for side in ratio)
    shape = _between(low, high, (count, ATTEMPTS), generator).exp()
    wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first).squeeze(1), tall.gather(1, first).squeeze(1)
    # No attempt fits: the whole image, its longer side cut to the allowed shape.
    none = ~fits.any(dim=1)
    wide[none] = min(width, round(height * ratio[1]))
    tall[none] = min(height, round(width / ratio[0]))
    top = (torch.rand(count, generator=generator) * (height - tall + 1)).floor()
    left = (torch.rand(count, generator=generator) * (width - wide + 1)).floor()
    top[none], left[none] = ((height - tall[none]) / 2).round(), ((width - wide[none]) / 2).round()
    return torch.stack([top, left, tall, wide], dim=1)


def color_jitter(
    images: Tensor, strength: tuple[float, float, float, float], generator: torch.Generator
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image by its own factors.

    The ranges are ColorJitter's; the order is fixed, and hue is a rotation in YIQ, which is one matrix per
    image where torchvision's way through HSV is most of the cost of augmentation.
    """
    brightness, contrast, saturation, hue = strength
    draw = [_between(max(0.0, 1 - s), 1 + s, (len(images), 1, 1, 1), generator) for s in strength[:3]]
    turn = _between(-hue, hue, (len(images),), generator)
    shown = images
    if brightness:
        shown = (shown * draw[0].to(shown.device)).clamp(0, 1)
    if contrast:
        mean = _grey(shown).mean(dim=(2, 3), keepdim=True)
        shown = torch.lerp(mean.expand_as(shown), shown, draw[1].to(shown.device)).clamp(0, 1)
    if shown.shape[1] == 3 and (saturation or hue):
        if saturation:
            shown = torch.lerp(_grey(shown).expand_as(shown), shown, draw[2].to(shown.device)).clamp(0, 1)
        if hue:
            turned = torch.bmm(_hue_rotation(turn).to(shown.device), shown.flatten(2))
            shown = turned.view_as(shown).clamp(0, 1)
    return shown


def _between(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    return (images * images.new_tensor([0.2989, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _hue_rotation(turn: Tensor) -> Tensor:
    """Rotate the chroma plane by a share of a full turn: ``(N,) -> (N, 3, 3)`` on RGB."""
    to_yiq = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    angle = 2 * torch.pi * turn
    rotation = torch.zeros(len(turn), 3, 3)
    rotation[:, 0, 0] = 1
    rotation[:, 1, 1] = rotation[:, 2, 2] = angle.cos()
    rotation[:, 1, 2], rotation[:, 2, 1] = -angle.sin(), angle.sin()
    turned: Tensor = torch.linalg.inv(to_yiq) @ rotation @ to_yiq
    return turned
