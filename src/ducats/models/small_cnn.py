"""Small convolutional network, for digits and tests; trains in seconds on one core."""

import torch.nn.functional as F
from torch import Tensor, nn


class SquareAvgPool(nn.Module):
    """Average pooling to a square of a given side.

    Plain pooling is used where the side divides that of the input: adaptive pooling is not deterministic on a
    GPU.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps ``(N, C, H, W)`` to ``(N, C, side, side)``."""
        height, width = maps.shape[-2:]
        if height % self.side or width % self.side:
            return F.adaptive_avg_pool2d(maps, self.side)
        kernel = (height // self.side, width // self.side)
        return maps if kernel == (1, 1) else F.avg_pool2d(maps, kernel)


class SmallCNN(nn.Module):
    """Two blocks of two convolutions, a hidden layer and a linear head."""

    def __init__(self, classes: int, channels: int, width: int, features: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *_block(channels, width),
            *_block(width, 2 * width),
            SquareAvgPool(4),
            nn.Flatten(),
            nn.Linear(2 * width * 16, features),
            nn.BatchNorm1d(features),
            nn.ReLU(),
        )
        self.head = nn.Linear(features, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features for images in [0, 1]."""
        features = self.backbone(images - 0.5)
        return self.head(features), features


def small_cnn(*, classes: int, channels: int, width: int = 16, features: int = 64) -> SmallCNN:
    """Build a small convolutional network; the second block has twice the ``width`` in channels."""
    return SmallCNN(classes, channels, width, features)


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
