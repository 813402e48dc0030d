"""Small fully convolutional network, for synthetic streets and tests; trains in half a minute on one core."""

import torch
from torch import Tensor, nn


class SmallFCN(nn.Module):
    """Fine features at 1/2 resolution, context by dilated convolutions at 1/4, and a head on both.

    Group normalisation makes the output independent of the batch: its size and its mix of domains.
    """

    def __init__(self, classes: int, channels: int, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        wide = 2 * width
        self.fine = nn.Sequential(*_layer(channels, width, stride=2), *_layer(width, width))
        self.down = nn.Sequential(*_layer(width, wide, stride=2))
        self.context = nn.ModuleList(nn.Sequential(*_layer(wide, wide, dilation=d)) for d in dilations)
        # Pixel shuffle is deterministic on a GPU; bilinear upsampling is not.
        self.up = nn.Sequential(nn.Conv2d(wide, 4 * width, 1), nn.PixelShuffle(2))
        self.fuse = nn.Sequential(
            nn.Conv2d(wide, wide, 1, bias=False), nn.GroupNorm(_groups(wide), wide), nn.ReLU()
        )
        self.head = nn.Conv2d(wide, classes, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features at half the height and width, rounded up, for images in [0, 1]."""
        fine = self.fine(images - 0.5)
        context = self.down(fine)
        for layer in self.context:
            context = context + layer(context)
        height, width = fine.shape[-2:]
        context = self.up(context)[..., :height, :width]
        features = self.fuse(torch.cat([fine, context], 1))
        return self.head(features), features


def small_fcn(
    *, classes: int, channels: int, width: int = 24, dilations: tuple[int, ...] = (1, 2, 4)
) -> SmallFCN:
    """Build a small fully convolutional network.

    Args:
        width: channels at 1/2 resolution; twice as many at 1/4 and before the head.
        dilations: dilations of the convolutions at 1/4 resolution; each adds ``8 * dilation`` pixels to the
            side of the receptive field.
    """
    return SmallFCN(classes, channels, width, tuple(dilations))


def _layer(inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False),
        nn.GroupNorm(_groups(outputs), outputs),
        nn.ReLU(),
    ]


def _groups(channels: int) -> int:
    """Return the number of groups of 8 channels; 1 if 8 does not divide the channels."""
    return channels // 8 if channels % 8 == 0 else 1
