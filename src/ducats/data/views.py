"""Views: batched transforms from stored images to a model's input, with separate parameters for each image.

``draw`` samples the augmentation parameters on the CPU, for a whole epoch at a time. ``look`` applies them on
the images' device. It samples nothing and reads no value back, so it never synchronises a GPU and can be part
of a CUDA graph (except RandAugment, which processes images one by one). Every operation gives the result of
torchvision's (``transforms.v2``, on floats in [0, 1]) on a single image.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ducats.data.colour import FACTORS, ORDER, color_jitter
from ducats.data.strong import cutout, randaugment

ATTEMPTS = 10  # to sample a RandomResizedCrop box that fits, as in torchvision
LUCK = 16  # number of augmentation parameters per image; FACTORS and ORDER are for colour jitter
BOX = slice(0, 4)  # top, left, height, width, in stored pixels
FLIP = 4  # 1 or 0
SEED = 13  # seed of RandAugment; integers that float32 represents exactly
HOLE = slice(14, 16)  # centre of the cutout, as fractions of height and width


@dataclass(frozen=True)
class View:
    """Crop, flip and colour of images; ``config.View`` documents the fields."""

    crop: Literal["none", "center", "random", "resized"] = "none"
    size: int | tuple[int, int] | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    pad: int = 0
    flip: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    resize: Literal["squash", "short_side"] = "squash"
    randaugment: tuple[int, int] | None = None
    cutout: float = 0.0

    def __post_init__(self) -> None:
        if self.resize == "short_side" and (self.crop not in ("center", "random") or self.pad):
            raise ValueError("resize 'short_side' needs a center or random crop and no pad")

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output for stored images of this height and width.

        >>> ViewConfig(size=5).sides(8, 9), ViewConfig(size=(4, 6)).sides(8, 9), ViewConfig().sides(8, 9)
        ((5, 5), (4, 6), (8, 9))
        """
        if self.size is None:
            return height, width
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def draw(
    view: View,
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    aspect: Tensor | None = None,
) -> Tensor:
    """Sample the augmentation parameters of a view for stored images of ``height`` x ``width``.

    Only random parameters are sampled: a deterministic view does not advance the generator.

    Args:
        count: Number of parameter rows.
        generator: A CPU generator.
        aspect: Original width / height of each image, ``(count,)``; required for ``resize="short_side"``.

    Returns:
        float32 ``(count, LUCK)`` on the CPU, with independent rows.
    """
    luck = torch.zeros(count, LUCK)
    luck[:, BOX] = _boxes(view, count, height, width, generator, aspect)
    if view.flip:
        luck[:, FLIP] = (torch.rand(count, generator=generator) < view.flip).float()
    *strengths, hue = view.jitter
    ranges = [(max(0.0, 1 - strength), 1 + strength) for strength in strengths] + [(-hue, hue)]
    for column, (low, high) in enumerate(ranges, start=FACTORS.start):
        luck[:, column] = _between(low, high, (count,), generator) if low < high else low
    if any(view.jitter):
        luck[:, ORDER] = torch.rand(count, 4, generator=generator).argsort(dim=1).float()
    else:
        luck[:, ORDER] = torch.arange(4.0)
    if view.randaugment is not None:
        luck[:, SEED] = torch.randint(2**24, (count,), generator=generator).float()
    if view.cutout:
        luck[:, HOLE] = torch.rand(count, 2, generator=generator)
    return luck


def look(images: Tensor, view: View, luck: Tensor) -> Tensor:
    """Apply a view with pre-sampled augmentation parameters.

    Args:
        images: uint8 ``(N, C, H, W)`` on any device.
        luck: Output of ``draw`` for this view and image size, ``(N, LUCK)`` on the same device.

    Returns:
        float32 ``(N, C, height, width)`` in [0, 1]; see ``ViewConfig.sides`` for height and width.
    """
    size = view.sides(*images.shape[-2:])
    if view.crop == "resized":
        resize = resize_one_by_one if images.device.type == "cpu" else resize_at_once
        shown = resize(images, luck, size)
    elif view.resize == "short_side":
        shown = resize_at_once(images, luck, size, blinkers=False)
    elif view.crop == "random":
        shown = cut(images, luck, size).float().div_(255)
    else:
        shown = center_crop(images, size) if view.crop == "center" else images
        shown = (_turned(shown, luck) if view.flip else shown).float().div_(255)
        if view.crop == "none" and shown.shape[-2:] != size:
            shown = F.interpolate(shown, size, mode="bilinear", antialias=True)
    if any(view.jitter):
        shown = color_jitter(shown, view.jitter, luck)
    if view.randaugment is not None:
        shown = randaugment(shown, *view.randaugment, luck[:, SEED])
    return cutout(shown, view.cutout, luck[:, HOLE]) if view.cutout else shown


def look_labels(maps: Tensor, view: View, luck: Tensor) -> Tensor:
    """Apply the view of the images to their label maps, with nearest-neighbour interpolation.

    Args:
        maps: Integers ``(N, H, W)`` on any device.
        luck: Parameters that the images were augmented with, ``(N, LUCK)`` on the same device.

    Returns:
        ``(N, height, width)`` of the same type. Padding repeats the label at the edge, as it does for images.
    """
    height, width = maps.shape[-2:]
    size = view.sides(height, width)
    if view.crop == "none" and size == (height, width):
        return torch.where(luck[:, FLIP, None, None] > 0, maps.flip(-1), maps) if view.flip else maps
    top, left, tall, wide = (column[:, None] for column in luck[:, BOX].unbind(1))
    down = torch.arange(size[0], device=maps.device, dtype=torch.float32)
    across = _from_left(luck, size[1]) if view.flip else torch.arange(size[1], device=maps.device)
    rows = (top + (down + 0.5) * tall / size[0]).floor().long().clamp(0, height - 1)
    columns = (left + (across + 0.5) * wide / size[1]).floor().long().clamp(0, width - 1)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    return maps.flatten(1).gather(1, places).view(len(maps), *size)


# ---- boxes


def _boxes(
    view: View, count: int, height: int, width: int, generator: torch.Generator, aspect: Tensor | None
) -> Tensor:
    """Return the crop box of each image: ``(count, 4)``."""
    tall, wide = view.sides(height, width)
    if view.crop == "none":
        return torch.tensor([0.0, 0.0, height, width]).expand(count, 4)
    if view.crop == "resized":
        return crop_boxes(count, height, width, view.scale, view.ratio, generator)
    if view.resize == "short_side":
        if aspect is None:
            raise ValueError("resize 'short_side' needs the images' aspect ratios")
        return short_side_boxes(view, height, width, aspect, generator)
    if view.crop == "center":
        return torch.tensor([_middle(height, tall), _middle(width, wide), tall, wide]).expand(count, 4)
    starts = [
        torch.randint(_fitting(side + 2 * view.pad, size) - size + 1, (count,), generator=generator)
        - view.pad
        for side, size in ((height, tall), (width, wide))
    ]
    return torch.stack([*starts, torch.full((count,), tall), torch.full((count,), wide)], dim=1)


def crop_boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Sample boxes ``(count, 4)`` (top, left, height, width) as RandomResizedCrop does."""
    area = height * width * _between(*scale, (count, ATTEMPTS), generator)
    shape = _between(math.log(ratio[0]), math.log(ratio[1]), (count, ATTEMPTS), generator).exp()
    wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first).squeeze(1), tall.gather(1, first).squeeze(1)
    top = _between(0, 1, (count,), generator).mul(height - tall + 1).floor()
    left = _between(0, 1, (count,), generator).mul(width - wide + 1).floor()
    # If no attempt fits: the centre of the image, with the longer side cut to the allowed aspect ratio.
    most_tall, most_wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    middle = [(height - most_tall) // 2, (width - most_wide) // 2, most_tall, most_wide]
    boxes = torch.stack([top, left, tall, wide], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), boxes, torch.tensor(middle, dtype=boxes.dtype))


def short_side_boxes(
    view: View, height: int, width: int, aspect: Tensor, generator: torch.Generator
) -> Tensor:
    """Return boxes ``(count, 4)`` in the stored images that equal a crop after ``Resize(short side)``.

    Stored images have lost their aspect ratio. Boxes are aligned to whole pixels of the image that ``Resize``
    would make, so their coordinates in stored pixels are fractional.
    """
    tall, wide = view.sides(height, width)
    side = _fitting(min(height, width), max(tall, wide))
    # The factor guards against a float32 ratio that ends up just below the whole number Resize gets.
    across = aspect.double() * (1 + 1e-7)
    down = aspect.double().reciprocal() * (1 + 1e-7)
    boxes = []
    for stored, longer, size in ((height, down, tall), (width, across, wide)):
        resized = (side * longer.clamp_min(1)).floor()
        if view.crop == "center":
            start = ((resized - size) / 2).round()
        else:
            start = _between(0, 1, tuple(resized.shape), generator).mul(resized - size + 1).floor()
        boxes.append((start * stored / resized, size * stored / resized))
    (top, height_of_box), (left, width_of_box) = boxes
    return torch.stack([top, left, height_of_box, width_of_box], dim=1)


def _fitting(side: int, size: int) -> int:
    """Return the side; raise if the crop is larger."""
    if size > side:
        raise ValueError(f"a crop of {size} pixels does not fit into images of {side} pixels")
    return side


def _middle(side: int, size: int) -> int:
    """Return the start of a centre crop, rounded as in torchvision."""
    return round((_fitting(side, size) - size) / 2)


def _between(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


# ---- crops


Size = tuple[int, int]  # height and width of the output


def center_crop(images: Tensor, size: Size) -> Tensor:
    """Crop the centre of each image."""
    top, left = (_middle(side, shown) for side, shown in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]


def cut(images: Tensor, luck: Tensor, size: Size) -> Tensor:
    """Crop each image at its own position and flip it if required; padding repeats the edge."""
    height, width = images.shape[-2:]
    rows = luck[:, 0, None].long() + torch.arange(size[0], device=images.device)
    columns = luck[:, 1, None].long() + _from_left(luck, size[1]).long()
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = images.flatten(2)
    found = flat.gather(2, places[:, None, :].expand(-1, flat.shape[1], -1))
    return found.view(*images.shape[:2], *size)


def resize_one_by_one(images: Tensor, luck: Tensor, size: Size) -> Tensor:
    """Do the same as ``resize_at_once``, whose mostly-zero matrices take four times as long on a CPU."""
    shown = torch.empty(*images.shape[:2], *size)
    boxes = luck[:, [0, 1, 2, 3, FLIP]].int().tolist()
    for image, part, (top, left, tall, wide, turned) in zip(images, shown, boxes, strict=True):
        box = image[None, :, top : top + tall, left : left + wide].float()
        resized = F.interpolate(box, size, mode="bilinear", antialias=True)[0]
        part.copy_(resized.flip(-1) if turned else resized)
    return shown.div_(255)


def resize_at_once(images: Tensor, luck: Tensor, size: Size, *, blinkers: bool = True) -> Tensor:
    """Crop a box from each image, resize it (bilinear, antialiased) and flip it if required.

    Each axis is one matrix product per image, in float32 even under autocast (subject to
    ``torch.set_float32_matmul_precision``). With ``blinkers``, pixels outside the box are ignored, as in a
    crop followed by a resize. Without, the image is resized first, and the box may be fractional.
    """
    top, left, tall, wide = luck[:, BOX].unbind(1)
    down = torch.arange(size[0], device=images.device, dtype=torch.float32).expand(len(images), size[0])
    vertical = interpolation(down, top, tall, images.shape[-2], blinkers=blinkers)
    across = interpolation(_from_left(luck, size[1]), left, wide, images.shape[-1], blinkers=blinkers) / 255
    with torch.autocast(images.device.type, enabled=False):
        narrowed = torch.bmm(images.flatten(1, 2).float(), across.transpose(1, 2))
        return torch.matmul(vertical[:, None], narrowed.view(*images.shape[:3], size[1]))


def interpolation(place: Tensor, start: Tensor, length: Tensor, side: int, *, blinkers: bool) -> Tensor:
    """Return the weight of each stored pixel in each output pixel along one axis: ``(N, size, side)``.

    The weights of an output pixel sum to 1. They form a triangle around its position, as wide as an output
    pixel or a stored pixel, whichever is wider.

    Args:
        place: Index of each output pixel within the box, ``(N, size)``.
        start: Start of each box, ``(N,)``.
        length: Length of each box, ``(N,)``.
        side: Length of the stored images along this axis.
        blinkers: Whether to ignore pixels outside the box.
    """
    scale = (length / place.shape[1])[:, None, None]
    stored = torch.arange(side, device=place.device) - start[:, None, None]  # relative to the box
    distance = stored + 0.5 - (place[:, :, None] + 0.5) * scale
    weight = (1 - (distance / scale.clamp_min(1)).abs()).clamp_min(0)
    if blinkers:
        weight = weight * ((stored >= 0) & (stored < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def _from_left(luck: Tensor, size: int) -> Tensor:
    """Return the box column of each output column, mirrored for flipped images: float32 ``(N, size)``."""
    columns = torch.arange(size, device=luck.device, dtype=torch.float32)
    turned = luck[:, FLIP, None]
    return columns + turned * (size - 1 - 2 * columns)


def _turned(images: Tensor, luck: Tensor) -> Tensor:
    return torch.where(luck[:, FLIP, None, None, None] > 0, images.flip(-1), images)
