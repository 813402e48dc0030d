"""A small fully convolutional network, for drawn streets and tests: trains in half a minute on one core."""

import torch
from torch import Tensor, nn


class SmallFCN(nn.Module):
    """Fine maps at half the image's size, context from dilated convolutions at a quarter, a head on both.

    Normalisation is by groups of channels within each image, so small batches, and batches of one domain or
    of both, are all the same to it.
    """

    def __init__(self, classes: int, channels: int, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        wide = 2 * width
        self.fine = nn.Sequential(*_layer(channels, width, stride=2), *_layer(width, width))
        self.down = nn.Sequential(*_layer(width, wide, stride=2))
        self.context = nn.ModuleList(nn.Sequential(*_layer(wide, wide, dilation=d)) for d in dilations)
        # Four times the channels, then laid out as 2 x 2 pixels: deterministic on a GPU, as bilinear is not.
        self.up = nn.Sequential(nn.Conv2d(wide, 4 * width, 1), nn.PixelShuffle(2))
        self.fuse = nn.Sequential(
            nn.Conv2d(wide, wide, 1, bias=False), nn.GroupNorm(_groups(wide), wide), nn.ReLU()
        )
        self.head = nn.Conv2d(wide, classes, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] to logits and features, both at half the images' height and width, rounded up."""
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
        classes: number of classes.
        channels: of the images.
        width: channels at half the image's size; twice as many at a quarter, and before the head.
        dilations: of the convolutions at a quarter of the size; each adds ``8 * dilation`` pixels to the
            side of what a position sees.
    """
    return SmallFCN(classes, channels, width, tuple(dilations))


def _layer(inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride, padding=dilation, dilation=dilation, bias=False),
        nn.GroupNorm(_groups(outputs), outputs),
        nn.ReLU(),
    ]


def _groups(channels: int) -> int:
    """As many groups of 8 channels as there are, or one."""
    return channels // 8 if channels % 8 == 0 else 1
