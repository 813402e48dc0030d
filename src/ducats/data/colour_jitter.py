"""Batched colour jitter, equal to torchvision's ColorJitter with separate parameters for each image.

As in ``views``, nothing is sampled here and no value is read back from the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

JITTER_FACTOR_COLUMNS = slice(5, 9)  # brightness, contrast, saturation and hue shift
JITTER_ORDER_COLUMNS = slice(9, 13)  # the operation to apply first, second, third, fourth
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
_LUMA_WEIGHTS = (0.2989, 0.587, 0.114)  # weights of red, green and blue, as in torchvision
_CPU_CHUNK_VALUES = 2**18  # colour values per chunk on a CPU: fits its cache


def color_jitter(images: Tensor, strengths: tuple[float, float, float, float], aug_params: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image, in its own order (ColorJitter).

    Operations of strength 0 are skipped, and so are saturation and hue for grey images.

    For each image, every blend comes either before or after the hue shift. One hue shift for the whole batch,
    the expensive part, is therefore enough, with one blend of each kind before it and one after it.
    """
    channels = images.shape[1]
    if channels not in (1, 3):
        raise ValueError(f"colour jitter needs images of 1 or 3 channels, not {channels}")
    active = [kind for kind in range(4) if strengths[kind] and (channels == 3 or kind < SATURATION)]
    if not active:
        return images
    blends, hue = [kind for kind in active if kind != HUE], HUE in active
    weights = blend_weights(aug_params, blends, hue=hue)
    hue_shifts = aug_params[:, JITTER_FACTOR_COLUMNS][:, HUE]
    # On a CPU, take a few images at a time through all steps: they stay in its cache.
    chunk_size = (
        max(1, _CPU_CHUNK_VALUES // images.shape[1:].numel()) if images.device.type == "cpu" else len(images)
    )
    outputs = []
    for augmented, chunk_weights, hue_shift in zip(
        images.split(chunk_size), weights.split(chunk_size), hue_shifts.split(chunk_size), strict=True
    ):
        step_weights = chunk_weights.unbind(1)
        for step in step_weights[: len(blends)]:
            augmented = blend(augmented, step, blends)
        if hue:
            augmented = shift_hue(augmented, hue_shift)
        for step in step_weights[len(blends) :]:
            augmented = blend(augmented, step, blends)
        outputs.append(augmented)
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def blend_weights(aug_params: Tensor, blends: Sequence[int], *, hue: bool) -> Tensor:
    """Compute the blend weights of each step: of the image, its mean grey and its grey pixels.

    Returns:
        ``(N, steps, 3)``, with one step for each kind of blend and, with hue, the same number again after the
        hue shift. The weights (1, 0, 0) leave an image unchanged; in every step some images have these.
    """
    if not blends:
        return aug_params.new_zeros(len(aug_params), 0, 3)
    slots = torch.arange(4, device=aug_params.device)
    # (N, 4): position of each kind
    position = ((aug_params[:, JITTER_ORDER_COLUMNS, None] == slots) * slots[:, None]).sum(dim=1)
    blend_position = torch.stack([position[:, kind] for kind in blends], dim=1)
    step = (blend_position[:, :, None] > blend_position[:, None, :]).sum(dim=2)  # number of earlier blends
    if hue:
        step = step + len(blends) * (blend_position > position[:, HUE, None])
    steps = torch.arange(len(blends) * (1 + hue), device=aug_params.device)
    is_at_step = dict(zip(blends, (step[:, :, None] == steps).unbind(1), strict=True))  # each (N, steps)
    factor = {kind: aug_params[:, JITTER_FACTOR_COLUMNS][:, kind, None] for kind in blends}
    image_weight = aug_params.new_ones(len(aug_params), len(steps))
    for kind in blends:
        image_weight = torch.where(is_at_step[kind], factor[kind], image_weight)
    grey_weights = [
        is_at_step[kind] * (1 - factor[kind]) if kind in is_at_step else image_weight * 0
        for kind in (CONTRAST, SATURATION)
    ]
    return torch.stack([image_weight, *grey_weights], dim=2)


def blend(images: Tensor, weights: Tensor, kinds: Sequence[int]) -> Tensor:
    """Blend each image with black, its mean grey or its grey pixels, depending on ``kinds``.

    The weights ``(N, 3)`` are those of the image, the mean grey and the grey pixels.
    """
    image_weight, mean_weight, pixel_weight = weights[:, :, None, None, None].unbind(1)
    if CONTRAST not in kinds and SATURATION not in kinds:
        return torch.mul(images, image_weight).clamp_(0, 1)
    grey = to_grey(images)
    grey_part = grey.mean(dim=(2, 3), keepdim=True) * mean_weight
    if SATURATION in kinds:
        grey_part = torch.addcmul(grey_part, grey, pixel_weight)
    return torch.addcmul(grey_part, images, image_weight).clamp_(0, 1)


def shift_hue(images: Tensor, hue_shift: Tensor) -> Tensor:
    """Shift the hue of each image by a fraction ``(N,)`` of the full circle, through HSV.

    Value and chroma are unchanged. Hue is measured in sixths of the circle, from red. Each channel is the
    value minus a fraction of the chroma, which depends on the channel's distance from the hue.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    hue_from_blue = (red - green).add_(chroma, alpha=4)
    hue_from_green = (blue - red).add_(chroma, alpha=2)
    hue = torch.where(value == red, green - blue, torch.where(value == green, hue_from_green, hue_from_blue))
    hue.div_(chroma.clamp_min(torch.finfo(chroma.dtype).tiny))  # grey has no hue: any finite value will do
    hue.add_(hue_shift[:, None, None], alpha=6).remainder_(6)
    output = torch.empty_like(images)
    for channel, chroma_fraction in enumerate(
        (2 - (hue - 3).abs(), (hue - 2).abs_() - 1, (hue - 4).abs_() - 1)
    ):
        torch.addcmul(value, chroma, chroma_fraction.clamp_(0, 1), value=-1, out=output[:, channel])
    return output


def to_grey(images: Tensor) -> Tensor:
    """Convert to grey as torchvision does: ``(N, 1, H, W)``."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return (
        torch.mul(red, _LUMA_WEIGHTS[0])
        .add_(green, alpha=_LUMA_WEIGHTS[1])
        .add_(blue, alpha=_LUMA_WEIGHTS[2])
    )
