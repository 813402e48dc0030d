"""Views: batched transforms from stored images to a model's input, with separate parameters for each image.

``sample_view_params`` samples the augmentation parameters on the CPU, for a whole epoch at a time.
``apply_view`` applies them on the images' device. It samples nothing and reads no value back, so it never
synchronises a GPU and can be part of a CUDA graph (except RandAugment, which processes images one by one).
Every operation gives the result of torchvision's (``transforms.v2``, on floats in [0, 1]) on a single image.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ducats.data.colour_jitter import JITTER_FACTOR_COLUMNS, JITTER_ORDER_COLUMNS, color_jitter
from ducats.data.strong_augmentation import cutout, randaugment
from ducats.settings import View

MAX_CROP_ATTEMPTS = 10  # to sample a RandomResizedCrop box that fits, as in torchvision
N_AUG_PARAMS = 16  # augmentation parameters per image; colour_jitter defines those of colour jitter
BOX_COLUMNS = slice(0, 4)  # top, left, height, width, in stored pixels
FLIP_COLUMN = 4  # 1 or 0
SEED_COLUMN = 13  # seed of RandAugment; integers that float32 represents exactly
CUTOUT_COLUMNS = slice(14, 16)  # centre of the cutout, as fractions of height and width


def sample_view_params(
    view: View,
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    aspect: Tensor | None = None,
) -> Tensor:
    """Sample the augmentation parameters of a view for stored images of ``height`` x ``width``.

    Only random parameters are sampled: a deterministic view does not advance the generator. The result is
    float32 ``(count, N_AUG_PARAMS)`` on the CPU, with independent rows.

    Args:
        aspect: Original width / height of each image, ``(count,)``; required for ``resize="short_side"``.
    """
    aug_params = torch.zeros(count, N_AUG_PARAMS)
    aug_params[:, BOX_COLUMNS] = _view_boxes(view, count, height, width, generator, aspect)
    if view.flip:
        aug_params[:, FLIP_COLUMN] = (torch.rand(count, generator=generator) < view.flip).float()
    *strengths, hue = view.jitter
    ranges = [(max(0.0, 1 - strength), 1 + strength) for strength in strengths] + [(-hue, hue)]
    for column, (low, high) in enumerate(ranges, start=JITTER_FACTOR_COLUMNS.start):
        aug_params[:, column] = _uniform(low, high, (count,), generator) if low < high else low
    if any(view.jitter):
        aug_params[:, JITTER_ORDER_COLUMNS] = torch.rand(count, 4, generator=generator).argsort(dim=1).float()
    else:
        aug_params[:, JITTER_ORDER_COLUMNS] = torch.arange(4.0)
    if view.randaugment is not None:
        aug_params[:, SEED_COLUMN] = torch.randint(2**24, (count,), generator=generator).float()
    if view.cutout:
        aug_params[:, CUTOUT_COLUMNS] = torch.rand(count, 2, generator=generator)
    return aug_params


def apply_view(images: Tensor, view: View, aug_params: Tensor) -> Tensor:
    """Apply a view with augmentation parameters from ``sample_view_params``.

    From uint8 ``(N, C, H, W)`` on any device to float32 ``(N, C, height, width)`` in [0, 1]; see
    ``View.output_size`` for height and width.
    """
    size = view.output_size(*images.shape[-2:])
    if view.crop == "random_resized":
        resize = resize_one_by_one if images.device.type == "cpu" else resize_batched
        augmented = resize(images, aug_params, size)
    elif view.resize == "short_side":
        augmented = resize_batched(images, aug_params, size, crop_first=False)
    elif view.crop == "random":
        augmented = crop_with_edge_padding(images, aug_params, size).float().div_(255)
    else:
        augmented = center_crop(images, size) if view.crop == "center" else images
        augmented = (_flip_selected(augmented, aug_params) if view.flip else augmented).float().div_(255)
        if view.crop == "none" and augmented.shape[-2:] != size:
            augmented = F.interpolate(augmented, size, mode="bilinear", antialias=True)
    if any(view.jitter):
        augmented = color_jitter(augmented, view.jitter, aug_params)
    if view.randaugment is not None:
        augmented = randaugment(augmented, *view.randaugment, aug_params[:, SEED_COLUMN])
    return cutout(augmented, view.cutout, aug_params[:, CUTOUT_COLUMNS]) if view.cutout else augmented


def apply_view_to_labels(label_maps: Tensor, view: View, aug_params: Tensor) -> Tensor:
    """Apply the view of the images to their label maps ``(N, H, W)``, with nearest-neighbour interpolation.

    ``aug_params`` are those of the images. Padding repeats the label at the edge, as it does for images.
    """
    height, width = label_maps.shape[-2:]
    size = view.output_size(height, width)
    if view.crop == "none" and size == (height, width):
        return _flip_selected(label_maps, aug_params) if view.flip else label_maps
    top, left, box_height, box_width = (column[:, None] for column in aug_params[:, BOX_COLUMNS].unbind(1))
    output_rows = torch.arange(size[0], device=label_maps.device, dtype=torch.float32)
    output_columns = (
        _box_columns(aug_params, size[1]) if view.flip else torch.arange(size[1], device=label_maps.device)
    )
    rows = (top + (output_rows + 0.5) * box_height / size[0]).floor().long().clamp(0, height - 1)
    columns = (left + (output_columns + 0.5) * box_width / size[1]).floor().long().clamp(0, width - 1)
    flat_index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    return label_maps.flatten(1).gather(1, flat_index).view(len(label_maps), *size)


# ---- boxes


def _view_boxes(
    view: View, count: int, height: int, width: int, generator: torch.Generator, aspect: Tensor | None
) -> Tensor:
    """Return the crop box of each image: ``(count, 4)``."""
    crop_height, crop_width = view.output_size(height, width)
    if view.crop == "none":
        return torch.tensor([0.0, 0.0, height, width]).expand(count, 4)
    if view.crop == "random_resized":
        return sample_crop_boxes(count, height, width, view.scale, view.ratio, generator)
    if view.resize == "short_side":
        if aspect is None:
            raise ValueError("resize 'short_side' needs the images' aspect ratios")
        return short_side_boxes(view, height, width, aspect, generator)
    if view.crop == "center":
        return torch.tensor(
            [_centre_start(height, crop_height), _centre_start(width, crop_width), crop_height, crop_width]
        ).expand(count, 4)
    starts = [
        torch.randint(_check_fits(side + 2 * view.pad, size) - size + 1, (count,), generator=generator)
        - view.pad
        for side, size in ((height, crop_height), (width, crop_width))
    ]
    return torch.stack([*starts, torch.full((count,), crop_height), torch.full((count,), crop_width)], dim=1)


def sample_crop_boxes(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Sample boxes ``(count, 4)`` (top, left, height, width) as RandomResizedCrop does."""
    area = height * width * _uniform(*scale, (count, MAX_CROP_ATTEMPTS), generator)
    shape = _uniform(math.log(ratio[0]), math.log(ratio[1]), (count, MAX_CROP_ATTEMPTS), generator).exp()
    box_width, box_height = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (box_width > 0) & (box_width <= width) & (box_height > 0) & (box_height <= height)
    first_fit = fits.int().argmax(dim=1, keepdim=True)
    box_width, box_height = (side.gather(1, first_fit).squeeze(1) for side in (box_width, box_height))
    top = _uniform(0, 1, (count,), generator).mul(height - box_height + 1).floor()
    left = _uniform(0, 1, (count,), generator).mul(width - box_width + 1).floor()
    # If no attempt fits: the centre of the image, with the longer side cut to the allowed aspect ratio.
    max_height, max_width = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    fallback = [(height - max_height) // 2, (width - max_width) // 2, max_height, max_width]
    boxes = torch.stack([top, left, box_height, box_width], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), boxes, torch.tensor(fallback, dtype=boxes.dtype))


def short_side_boxes(
    view: View, height: int, width: int, aspect: Tensor, generator: torch.Generator
) -> Tensor:
    """Return boxes ``(count, 4)`` in the stored images that equal a crop after ``Resize(short side)``.

    Stored images have lost their aspect ratio. Boxes are aligned to whole pixels of the image that ``Resize``
    would make, so their coordinates in stored pixels are fractional.
    """
    crop_height, crop_width = view.output_size(height, width)
    side = _check_fits(min(height, width), max(crop_height, crop_width))
    # The factor guards against a float32 ratio that ends up just below the whole number Resize gets.
    width_ratio = aspect.double() * (1 + 1e-7)
    height_ratio = aspect.double().reciprocal() * (1 + 1e-7)
    boxes = []
    for stored, ratio, size in ((height, height_ratio, crop_height), (width, width_ratio, crop_width)):
        resized = (side * ratio.clamp_min(1)).floor()
        if view.crop == "center":
            start = ((resized - size) / 2).round()
        else:
            start = _uniform(0, 1, tuple(resized.shape), generator).mul(resized - size + 1).floor()
        boxes.append((start * stored / resized, size * stored / resized))
    (top, box_height), (left, box_width) = boxes
    return torch.stack([top, left, box_height, box_width], dim=1)


def _check_fits(side: int, size: int) -> int:
    """Return the side; raise if the crop is larger."""
    if size > side:
        raise ValueError(f"a crop of {size} pixels does not fit into images of {side} pixels")
    return side


def _centre_start(side: int, size: int) -> int:
    """Return the start of a centre crop, rounded as in torchvision."""
    return round((_check_fits(side, size) - size) / 2)


def _uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


# ---- crops


_OutputSize = tuple[int, int]  # height and width of the output


def center_crop(images: Tensor, size: _OutputSize) -> Tensor:
    """Crop the centre of each image."""
    top, left = (
        _centre_start(side, crop_side) for side, crop_side in zip(images.shape[-2:], size, strict=True)
    )
    return images[..., top : top + size[0], left : left + size[1]]


def crop_with_edge_padding(images: Tensor, aug_params: Tensor, size: _OutputSize) -> Tensor:
    """Crop each image at its own position and flip it if required; padding repeats the edge."""
    height, width = images.shape[-2:]
    rows = aug_params[:, 0, None].long() + torch.arange(size[0], device=images.device)
    columns = aug_params[:, 1, None].long() + _box_columns(aug_params, size[1]).long()
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    flat_index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = images.flatten(2)
    crops = flat.gather(2, flat_index[:, None, :].expand(-1, flat.shape[1], -1))
    return crops.view(*images.shape[:2], *size)


def resize_one_by_one(images: Tensor, aug_params: Tensor, size: _OutputSize) -> Tensor:
    """Do the same as ``resize_batched``, whose mostly-zero matrices take four times as long on a CPU."""
    output = torch.empty(*images.shape[:2], *size)
    boxes = aug_params[:, [0, 1, 2, 3, FLIP_COLUMN]].int().tolist()
    for image, output_image, (top, left, box_height, box_width, is_flipped) in zip(
        images, output, boxes, strict=True
    ):
        box = image[None, :, top : top + box_height, left : left + box_width].float()
        resized = F.interpolate(box, size, mode="bilinear", antialias=True)[0]
        output_image.copy_(resized.flip(-1) if is_flipped else resized)
    return output.div_(255)


def resize_batched(
    images: Tensor, aug_params: Tensor, size: _OutputSize, *, crop_first: bool = True
) -> Tensor:
    """Crop a box from each image, resize it (bilinear, antialiased) and flip it if required.

    Each axis is one matrix product per image, in float32 even under autocast (subject to
    ``torch.set_float32_matmul_precision``). With ``crop_first``, pixels outside the box are ignored, as in a
    crop followed by a resize. Without, the image is resized first, and the box may be fractional.
    """
    top, left, box_height, box_width = aug_params[:, BOX_COLUMNS].unbind(1)
    rows = torch.arange(size[0], device=images.device, dtype=torch.float32).expand(len(images), size[0])
    vertical = interpolation_weights(rows, top, box_height, images.shape[-2], crop_first=crop_first)
    horizontal = (
        interpolation_weights(
            _box_columns(aug_params, size[1]), left, box_width, images.shape[-1], crop_first=crop_first
        )
        / 255
    )
    with torch.autocast(images.device.type, enabled=False):
        narrowed = torch.bmm(images.flatten(1, 2).float(), horizontal.transpose(1, 2))
        return torch.matmul(vertical[:, None], narrowed.view(*images.shape[:3], size[1]))


def interpolation_weights(
    position: Tensor, start: Tensor, length: Tensor, stored_side: int, *, crop_first: bool
) -> Tensor:
    """Return the weight of each stored pixel in each output pixel along one axis: ``(N, size, stored_side)``.

    The weights of an output pixel sum to 1. They form a triangle around its position, as wide as an output
    pixel or a stored pixel, whichever is wider.

    Args:
        position: Index of each output pixel within its box, ``(N, size)``.
        crop_first: Whether to ignore pixels outside the box.
    """
    scale = (length / position.shape[1])[:, None, None]
    stored = torch.arange(stored_side, device=position.device) - start[:, None, None]  # relative to the box
    distance = stored + 0.5 - (position[:, :, None] + 0.5) * scale
    weight = (1 - (distance / scale.clamp_min(1)).abs()).clamp_min(0)
    if crop_first:
        weight = weight * ((stored >= 0) & (stored < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def _box_columns(aug_params: Tensor, size: int) -> Tensor:
    """Return the box column of each output column, mirrored for flipped images: float32 ``(N, size)``."""
    columns = torch.arange(size, device=aug_params.device, dtype=torch.float32)
    is_flipped = aug_params[:, FLIP_COLUMN, None]
    return columns + is_flipped * (size - 1 - 2 * columns)


def _flip_selected(images: Tensor, aug_params: Tensor) -> Tensor:
    """Flip some of the images ``(N, C, H, W)``, or label maps ``(N, H, W)``."""
    is_flipped = aug_params[:, FLIP_COLUMN].view(-1, *[1] * (images.ndim - 1)) > 0
    return torch.where(is_flipped, images.flip(-1), images)
