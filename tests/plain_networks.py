"""Networks without batch statistics and luck: what they learn does not depend on how a batch is shared."""

from torch import Tensor, nn


class Plain(nn.Module):
    """For images of 8 x 8: two convolutions and a hidden layer in a list, and a linear head."""

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
        """Images in [0, 1] to logits."""
        logits: Tensor = self.head(self.layers(images - 0.5))
        return logits


def plain(*, classes: int, channels: int) -> Plain:
    """A small network."""
    return Plain(classes, channels)
