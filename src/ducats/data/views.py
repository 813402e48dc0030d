"""Views: how stored images become a model's input. Whole batches at once, each image with its own luck.

Luck is drawn on the CPU, for an epoch at a time; looking is arithmetic on the device where the images are.
It draws nothing and asks the device for no value, so a GPU never has to wait for it, and it can be part of
a CUDA graph (but for RandAugment, which goes through images one by one). Every operation is torchvision's
(``transforms.v2``, on floats in [0, 1]), image by image.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ducats.data.colour import FACTORS, ORDER, color_jitter
from ducats.data.strong import cutout, randaugment

ATTEMPTS = 10  # of RandomResizedCrop to find a box that fits, as in torchvision
LUCK = 16  # columns of luck; FACTORS and ORDER are for colour:
BOX = slice(0, 4)  # top, left, height, width, in stored pixels
FLIP = 4  # 1 or 0
SEED = 13  # of RandAugment; whole numbers that float32 holds
HOLE = slice(14, 16)  # middle of the cut-out, as shares of the sides


@dataclass(frozen=True)
class View:
    """Crop, flip, colour; see ``config.View`` for the meaning of each field."""

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
            raise ValueError("resize 'short_side' goes with a center or random crop without pad")

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what is shown of images that are stored in these.

        >>> View(size=5).sides(8, 9), View(size=(4, 6)).sides(8, 9), View().sides(8, 9)
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
    """Draw all that is random about views of images that are stored as ``height`` x ``width``.

    Only what the view leaves to chance is drawn, so a fixed view leaves the generator as it was.

    Args:
        view: What to draw for.
        count: How many views.
        height: Of the stored images.
        width: Of the stored images.
        generator: A CPU generator.
        aspect: Width over height ``(count,)`` that each image had before it was squashed, for
            ``resize="short_side"``.

    Returns:
        Luck: float32 ``(count, LUCK)`` on the CPU. Rows do not depend on each other.
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
    """Show images through a view, as luck has it.

    Args:
        images: uint8 ``(N, C, H, W)`` on any device.
        view: What is shown of them.
        luck: From ``draw`` for this view and these sides, ``(N, LUCK)`` on the same device.

    Returns:
        float32 ``(N, C, height, width)`` in [0, 1], as high and wide as ``View.sides`` says.
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
    """Show label maps through the view of their images: the nearest label, never a mixture.

    Args:
        maps: ``(N, H, W)`` of any integers, on any device.
        view: What is shown of the images.
        luck: What the images are shown with, ``(N, LUCK)`` on the same device.

    Returns:
        ``(N, height, width)`` of the same integers. Beyond the edge, where the image's edge is repeated, its
        label is, too.
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
    """What each view is cut from: ``(count, 4)``."""
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
    """Boxes ``(count, 4)`` as top, left, height, width, drawn by the rule of RandomResizedCrop."""
    area = height * width * _between(*scale, (count, ATTEMPTS), generator)
    shape = _between(math.log(ratio[0]), math.log(ratio[1]), (count, ATTEMPTS), generator).exp()
    wide, tall = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    wide, tall = wide.gather(1, first).squeeze(1), tall.gather(1, first).squeeze(1)
    top = _between(0, 1, (count,), generator).mul(height - tall + 1).floor()
    left = _between(0, 1, (count,), generator).mul(width - wide + 1).floor()
    # No attempt fits: the middle of the image, its longer side cut to the allowed shape.
    most_tall, most_wide = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    middle = [(height - most_tall) // 2, (width - most_wide) // 2, most_tall, most_wide]
    boxes = torch.stack([top, left, tall, wide], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), boxes, torch.tensor(middle, dtype=boxes.dtype))


def short_side_boxes(
    view: View, height: int, width: int, aspect: Tensor, generator: torch.Generator
) -> Tensor:
    """Boxes ``(count, 4)`` in squashed images that show what a crop after ``Resize(short side)`` shows.

    Places are whole pixels of the image as ``Resize`` would make it, so boxes are fractions of stored ones.
    """
    tall, wide = view.sides(height, width)
    side = _fitting(min(height, width), max(tall, wide))
    # Rounded ratios must not fall short of a whole number of pixels that Resize finds exactly.
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
    """The side, if a crop of this size fits in."""
    if size > side:
        raise ValueError(f"a crop of {size} does not fit into images of {side}")
    return side


def _middle(side: int, size: int) -> int:
    """Where the middle begins, as torchvision rounds it."""
    return round((_fitting(side, size) - size) / 2)


def _between(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


# ---- crops


Size = tuple[int, int]  # height and width of what is shown


def center_crop(images: Tensor, size: Size) -> Tensor:
    """Cut the middle out."""
    top, left = (_middle(side, shown) for side, shown in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]


def cut(images: Tensor, luck: Tensor, size: Size) -> Tensor:
    """Cut a piece out of each image, turned if it is to be; beyond the edge, the edge is repeated."""
    height, width = images.shape[-2:]
    rows = luck[:, 0, None].long() + torch.arange(size[0], device=images.device)
    columns = luck[:, 1, None].long() + _from_left(luck, size[1]).long()
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = images.flatten(2)
    found = flat.gather(2, places[:, None, :].expand(-1, flat.shape[1], -1))
    return found.view(*images.shape[:2], *size)


def resize_one_by_one(images: Tensor, luck: Tensor, size: Size) -> Tensor:
    """What ``resize_at_once`` does, on a CPU, where its matrices, mostly zeros, take four times as long."""
    shown = torch.empty(*images.shape[:2], *size)
    boxes = luck[:, [0, 1, 2, 3, FLIP]].int().tolist()
    for image, part, (top, left, tall, wide, turned) in zip(images, shown, boxes, strict=True):
        box = image[None, :, top : top + tall, left : left + wide].float()
        resized = F.interpolate(box, size, mode="bilinear", antialias=True)[0]
        part.copy_(resized.flip(-1) if turned else resized)
    return shown.div_(255)


def resize_at_once(images: Tensor, luck: Tensor, size: Size, *, blinkers: bool = True) -> Tensor:
    """Cut a box out of each image, resize it (bilinear, antialiased), and turn it if it is to be.

    Each side is one matrix product per image, in float32 (or what ``torch.set_float32_matmul_precision``
    was told to allow), also under autocast. With ``blinkers`` nothing outside of the box is seen, as if it
    were cut out first; without, the image is resized before it is cut, and the box may be of fractions.
    """
    top, left, tall, wide = luck[:, BOX].unbind(1)
    down = torch.arange(size[0], device=images.device, dtype=torch.float32).expand(len(images), size[0])
    vertical = interpolation(down, top, tall, images.shape[-2], blinkers=blinkers)
    across = interpolation(_from_left(luck, size[1]), left, wide, images.shape[-1], blinkers=blinkers) / 255
    with torch.autocast(images.device.type, enabled=False):
        narrowed = torch.bmm(images.flatten(1, 2).float(), across.transpose(1, 2))
        return torch.matmul(vertical[:, None], narrowed.view(*images.shape[:3], size[1]))


def interpolation(place: Tensor, start: Tensor, length: Tensor, side: int, *, blinkers: bool) -> Tensor:
    """How much each stored pixel of a side counts in each pixel shown: ``(N, size, side)``, sums of 1.

    A triangle around the place, as wide as a pixel shown or as a stored one, whichever is wider. ``place``
    is ``(N, size)``: which of ``size`` pixels of the box; ``start`` and ``length`` ``(N,)`` are the box's.
    """
    scale = (length / place.shape[1])[:, None, None]
    stored = torch.arange(side, device=place.device) - start[:, None, None]  # seen from the box
    distance = stored + 0.5 - (place[:, :, None] + 0.5) * scale
    weight = (1 - (distance / scale.clamp_min(1)).abs()).clamp_min(0)
    if blinkers:
        weight = weight * ((stored >= 0) & (stored < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def _from_left(luck: Tensor, size: int) -> Tensor:
    """Which column of its box each column shows: from left to right, or turned: float32 ``(N, size)``."""
    columns = torch.arange(size, device=luck.device, dtype=torch.float32)
    turned = luck[:, FLIP, None]
    return columns + turned * (size - 1 - 2 * columns)


def _turned(images: Tensor, luck: Tensor) -> Tensor:
    return torch.where(luck[:, FLIP, None, None, None] > 0, images.flip(-1), images)
