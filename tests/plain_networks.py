"""Networks without batch statistics or randomness: training does not depend on how a batch is sharded."""

from torch import Tensor, nn


class Plain(nn.Module):
    """Network for 8 x 8 images: two convolutions, a hidden layer and a linear head."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Conv2d(channels, 6, 3, stride=2), nn.ReLU()),
            nn.Sequential(nn.Conv2d(6, 12, 3, stride=2), nn.ReLU()),
            nn.Flatten(),
            nn.Linear(12, 20),
            nn.Tanh(),
        )
        self.head = nn.Linear(20, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images in [0, 1]."""
        logits: Tensor = self.head(self.layers(images - 0.5))
        return logits


def plain(*, classes: int, channels: int) -> Plain:
    """Return a small network."""
    return Plain(classes, channels)
