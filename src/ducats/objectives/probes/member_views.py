"""Augmentations of the members of the committee of TQS, with separate parameters for each image.

Parameters are sampled on the images' device by torch's default generator, and no value is read back: a step
with a committee can be recorded as a CUDA graph. Every operation gives the result of torchvision's on a PIL
image, with bicubic interpolation and white fill, except that values are not rounded to 8 bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ducats.data.colour_jitter import JITTER_FACTOR_COLUMNS, JITTER_ORDER_COLUMNS, color_jitter, to_grey
from ducats.data.views import N_AUG_PARAMS

DISTORTION = 0.5  # a perspective moves each corner inwards by up to this fraction of half the side
WHITE = 1.0


class MemberView(NamedTuple):
    """Augmentation of one member's images: flip, affine map, perspective, crop, colour jitter, greyscale."""

    degrees: float = 0.0  # rotation by up to this angle, to either side; 0: no affine map
    translate: float = 0.0  # translation by up to this fraction of the sides
    scale: float = 0.0  # scale in [1 - scale, 1 + scale]
    shear: float = 0.0  # horizontal shear by up to this angle in degrees
    perspective: float = 0.0  # probability of a perspective
    crop: tuple[float, float] = (0.5, 0.5)  # position (top, left) of the crop: (0, 1) is the top right corner
    jitter: float = 0.0  # strength of brightness, contrast, saturation and hue
    grey: float = 0.0  # probability of greyscale
    flip: float = 0.5  # probability of a horizontal flip


MEMBER_VIEWS: Sequence[MemberView] = (  # as published
    MemberView(degrees=30, translate=0.1, scale=0.1, shear=0.2, crop=(0.5, 0.5), grey=0.1),
    MemberView(perspective=0.5, crop=(0, 0), jitter=0.2),
    MemberView(degrees=30, translate=0.1, scale=0.1, shear=0.2, crop=(0, 1), jitter=0.2),
    MemberView(degrees=10, translate=0.1, scale=0.1, shear=0.1, perspective=0.5, crop=(1, 0)),
    MemberView(perspective=0.5, crop=(1, 1), grey=0.1),
)


class MemberViewParams(NamedTuple):
    """Sampled parameters of N images, in the units of torchvision's functions."""

    is_flipped: Tensor  # (N,) bool
    angle: Tensor  # (N,), degrees, clockwise
    translate: Tensor  # (N, 2): x and y in whole pixels
    scale: Tensor  # (N,)
    shear: Tensor  # (N,), degrees
    corners: Tensor  # (N, 4, 2): x and y to which the corner pixels move, clockwise from the top left
    jitter: Tensor  # (N, N_AUG_PARAMS), for `color_jitter`
    is_grey: Tensor  # (N,) bool


def sample_member_view(
    view: MemberView, count: int, height: int, width: int, device: torch.device | str = "cpu"
) -> MemberViewParams:
    """Sample the parameters of ``count`` images of ``height`` x ``width``."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, *shape, device=device)

    def signed(*shape: int) -> Tensor:
        return 2 * uniform(*shape) - 1

    translate = [view.translate * side * signed() for side in (width, height)]
    has_perspective, inwards = uniform() < view.perspective, uniform(4, 2)
    corners = []
    for axis, (side, is_far) in enumerate(((width, (0, 1, 1, 0)), (height, (0, 0, 1, 1)))):
        steps = int(DISTORTION * (side // 2)) + 1
        moved = (inwards[:, :, axis] * steps).floor().clamp(max=steps - 1) * has_perspective[:, None]
        columns = [
            side - 1 - step if far else step for far, step in zip(is_far, moved.unbind(1), strict=True)
        ]
        corners.append(torch.stack(columns, 1))
    jitter = torch.zeros(count, N_AUG_PARAMS, device=device)
    jitter[:, JITTER_FACTOR_COLUMNS] = view.jitter * signed(4)
    jitter[:, JITTER_FACTOR_COLUMNS.start : JITTER_FACTOR_COLUMNS.stop - 1] += 1  # factors; hue is a shift
    jitter[:, JITTER_ORDER_COLUMNS] = uniform(4).argsort(1).float()
    return MemberViewParams(
        is_flipped=uniform() < view.flip,
        angle=view.degrees * signed(),
        translate=torch.stack(translate, 1).round(),
        scale=1 + view.scale * signed(),
        shear=view.shear * signed(),
        corners=torch.stack(corners, 2),
        jitter=jitter,
        is_grey=uniform() < view.grey,
    )


def apply_member_view(
    images: Tensor, view: MemberView, params: MemberViewParams, size: tuple[int, int]
) -> Tensor:
    """Augment float images ``(N, channels, height, width)`` in [0, 1] and crop them to ``size``.

    Colours change only if there are 1 or 3 channels.
    """
    height, width = images.shape[-2:]
    box = (round(view.crop[0] * (height - size[0])), round(view.crop[1] * (width - size[1])), *size)
    images = torch.where(params.is_flipped[:, None, None, None], images.flip(-1), images)
    if view.degrees:
        images = warp(images, affine_matrix(params, height, width), None if view.perspective else box)
    if view.perspective:
        images = warp(images, perspective_matrix(params.corners, height, width), box)
    if images.shape[1] not in (1, 3):
        return images
    if view.jitter:
        images = color_jitter(images, (view.jitter,) * 4, params.jitter)
    return torch.where(params.is_grey[:, None, None, None], to_grey(images), images) if view.grey else images


def affine_matrix(params: MemberViewParams, height: int, width: int) -> Tensor:
    """Return the inverse of an affine map: shear, scale and rotation about the centre, then translation.

    Returns:
        ``(N, 3, 3)``, from output to input coordinates.
    """
    angle, shear = params.angle.deg2rad(), params.shear.deg2rad().tan()
    cos, sin = angle.cos() / params.scale, angle.sin() / params.scale
    a, b, c, d = cos - shear * sin, sin + shear * cos, -sin, cos
    x, y = params.translate.unbind(1)
    x, y = -x - width / 2, -y - height / 2
    zero = torch.zeros_like(a)
    rows = ((a, b, a * x + b * y + width / 2), (c, d, c * x + d * y + height / 2), (zero, zero, zero + 1))
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def perspective_matrix(corners: Tensor, height: int, width: int) -> Tensor:
    """Return the inverse of the perspective that moves the corner pixels to ``corners``, up to a factor.

    It is the adjugate of the map from the unit square to the quadrilateral (Heckbert, 1989), times the sides.

    Returns:
        ``(N, 3, 3)``, from output to input coordinates.
    """
    p, q, r, s = corners.unbind(1)  # clockwise from the top left
    determinant = _cross(q - r, s - r)
    g = (_cross(p - q + r - s, s - r) / determinant)[:, None]
    h = (_cross(q - r, p - q + r - s) / determinant)[:, None]
    # Columns of the map from the unit square; the rows of its adjugate are their cross products.
    u = torch.cat([q - p + g * q, g], 1)
    v = torch.cat([s - p + h * s, h], 1)
    w = torch.cat([p, torch.ones_like(g)], 1)
    rows = (
        torch.linalg.cross(v, w) * (width - 1),
        torch.linalg.cross(w, u) * (height - 1),
        torch.linalg.cross(u, v),
    )
    return torch.stack(rows, 1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def warp(images: Tensor, matrix: Tensor, box: tuple[int, int, int, int] | None = None) -> Tensor:
    """Resample each image through a map of coordinates; outside the image it is white.

    Interpolation is bicubic with parameter -1 and repeats the edge, as in Pillow's ``Image.transform``.

    Args:
        matrix: map from output to input coordinates, homogeneous ``(N, 3, 3)``; pixel centres are at ½.
        box: the part of the output to compute: top, left, height, width; None: all of it.
    """
    count, channels, height, width = images.shape
    top, left, box_height, box_width = box or (0, 0, height, width)
    columns = torch.arange(box_width, device=images.device) + (left + 0.5)
    rows = torch.arange(box_height, device=images.device)[:, None] + (top + 0.5)
    m = matrix[:, :, :, None, None]
    x, y, w = (m[:, :, 0] * columns + m[:, :, 1] * rows + m[:, :, 2]).flatten(2).unbind(1)
    x, y = x / w, y / w
    is_inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)  # False for non-finite values
    x, y = (torch.where(is_inside, position, 0.5) - 0.5 for position in (x, y))
    column, row = x.floor(), y.floor()
    column_weights, row_weights = cubic_weights(x - column), cubic_weights(y - row)
    flat, output = images.flatten(2), images.new_zeros(count, channels, box_height * box_width)
    for i, row_weight in enumerate(row_weights, start=-1):
        row_start = (row.long() + i).clamp(0, height - 1) * width
        for j, column_weight in enumerate(column_weights, start=-1):
            index = row_start + (column.long() + j).clamp(0, width - 1)
            pixels = flat.gather(2, index[:, None].expand(-1, channels, -1))
            output.addcmul_(pixels, (row_weight * column_weight)[:, None])
    output = torch.where(is_inside[:, None], output.clamp_(0, 1), WHITE)
    return output.view(count, channels, box_height, box_width)


def cubic_weights(t: Tensor) -> Sequence[Tensor]:
    """Return the weights of the pixels at -1, 0, 1 and 2 for positions ``t`` in [0, 1)."""
    return t * (-1 + t * (2 - t)), 1 + t * t * (t - 2), t * (1 + t * (1 - t)), t * t * (t - 1)
