"""Batched colour jitter, equal to torchvision's ColorJitter with separate parameters for each image.

As in ``views``, nothing is sampled here and no value is read back from the device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

FACTORS = slice(5, 9)  # brightness, contrast, saturation and hue shift
ORDER = slice(9, 13)  # the operation to apply first, second, third, fourth
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
LUMA = (0.2989, 0.587, 0.114)  # weights of red, green and blue, as in torchvision
_CACHED = 2**18  # colour values per chunk on a CPU: fits its cache


def color_jitter(images: Tensor, strength: tuple[float, float, float, float], luck: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image, in its own order (ColorJitter).

    Operations of strength 0 are skipped, and so are saturation and hue for grey images.

    For each image, every blend comes either before or after the hue shift. One hue shift for the whole batch,
    the expensive part, is therefore enough, with one blend of each kind before it and one after it.
    """
    channels = images.shape[1]
    if channels not in (1, 3):
        raise ValueError(f"colour jitter needs images of 1 or 3 channels, not {channels}")
    used = [kind for kind in range(4) if strength[kind] and (channels == 3 or kind < SATURATION)]
    if not used:
        return images
    blends, hue = [kind for kind in used if kind != HUE], HUE in used
    shares, turns = blend_shares(luck, blends, hue=hue), luck[:, FACTORS][:, HUE]
    # On a CPU, take a few images at a time through all steps: they stay in its cache.
    some = max(1, _CACHED // images.shape[1:].numel()) if images.device.type == "cpu" else len(images)
    parts = []
    for shown, share, turn in zip(images.split(some), shares.split(some), turns.split(some), strict=True):
        steps = share.unbind(1)
        for step in steps[: len(blends)]:
            shown = blend(shown, step, blends)
        if hue:
            shown = turn_hue(shown, turn)
        for step in steps[len(blends) :]:
            shown = blend(shown, step, blends)
        parts.append(shown)
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def blend_shares(luck: Tensor, blends: Sequence[int], *, hue: bool) -> Tensor:
    """Compute the blend weights of each step: of the image, its mean grey and its grey pixels.

    Returns:
        ``(N, steps, 3)``, with one step for each kind of blend and, with hue, the same number again after the
        hue shift. The weights (1, 0, 0) leave an image unchanged; in every step some images have these.
    """
    if not blends:
        return luck.new_zeros(len(luck), 0, 3)
    slots = torch.arange(4, device=luck.device)
    when = ((luck[:, ORDER, None] == slots) * slots[:, None]).sum(dim=1)  # (N, 4): position of each kind
    mine = torch.stack([when[:, kind] for kind in blends], dim=1)
    step = (mine[:, :, None] > mine[:, None, :]).sum(dim=2)  # number of earlier blends
    if hue:
        step = step + len(blends) * (mine > when[:, HUE, None])
    steps = torch.arange(len(blends) * (1 + hue), device=luck.device)
    at = dict(zip(blends, (step[:, :, None] == steps).unbind(1), strict=True))  # each (N, steps)
    factor = {kind: luck[:, FACTORS][:, kind, None] for kind in blends}
    own = luck.new_ones(len(luck), len(steps))
    for kind in blends:
        own = torch.where(at[kind], factor[kind], own)
    others = [at[kind] * (1 - factor[kind]) if kind in at else own * 0 for kind in (CONTRAST, SATURATION)]
    return torch.stack([own, *others], dim=2)


def blend(images: Tensor, shares: Tensor, kinds: Sequence[int]) -> Tensor:
    """Blend each image with black, its mean grey or its grey pixels, depending on ``kinds``.

    The weights ``(N, 3)`` are those of the image, the mean grey and the grey pixels.
    """
    own, mean, pixel = shares[:, :, None, None, None].unbind(1)
    if CONTRAST not in kinds and SATURATION not in kinds:
        return torch.mul(images, own).clamp_(0, 1)
    grey = _grey(images)
    others = grey.mean(dim=(2, 3), keepdim=True) * mean
    if SATURATION in kinds:
        others = torch.addcmul(others, grey, pixel)
    return torch.addcmul(others, images, own).clamp_(0, 1)


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue of each image by a fraction ``(N,)`` of the full circle, through HSV.

    Value and chroma are unchanged. Hue is measured in sixths of the circle, from red. Each channel is the
    value minus a fraction of the chroma, which depends on the channel's distance from the hue.
    """
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    beside_blue = (red - green).add_(chroma, alpha=4)
    beside_green = (blue - red).add_(chroma, alpha=2)
    hue = torch.where(value == red, green - blue, torch.where(value == green, beside_green, beside_blue))
    hue.div_(chroma.clamp_min(torch.finfo(chroma.dtype).tiny))  # grey has no hue: any finite value will do
    hue.add_(turn[:, None, None], alpha=6).remainder_(6)
    shown = torch.empty_like(images)
    for channel, short in enumerate((2 - (hue - 3).abs(), (hue - 2).abs_() - 1, (hue - 4).abs_() - 1)):
        torch.addcmul(value, chroma, short.clamp_(0, 1), value=-1, out=shown[:, channel])
    return shown


def _grey(images: Tensor) -> Tensor:
    """Convert to grey as torchvision does: ``(N, 1, H, W)``."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return torch.mul(red, LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
