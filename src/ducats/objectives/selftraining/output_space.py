"""Adversarial adaptation of output space (AdaptSegNet, Tsai et al., CVPR 2018), as a warm-up."""

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from ducats.errors import UserError
from ducats.objectives.companion import Beside, reverse_gradient
from ducats.objectives.selftraining.stacked import evident
from ducats.rows import Output


class OutputDiscriminator(nn.Module):
    """Tells two kinds of images apart by their maps of class probabilities, at each place of a coarser map.

    Args:
        classes: of the maps.
        hidden: channels of the first layer; twice as many in each of the two that follow.
    """

    def __init__(self, classes: int, hidden: int = 64) -> None:
        super().__init__()
        widths, layers = [classes, hidden, 2 * hidden, 4 * hidden], list[nn.Module]()
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 3, padding=1))

    def forward(self, probability: Tensor) -> Tensor:
        """Log odds of the first kind, ``(N, C, h, w) -> (N, h', w')``."""
        odds: Tensor = self.net(probability).squeeze(1)
        return odds.float()


def against(discriminator: OutputDiscriminator, source: Output, target: Output, strength: Tensor) -> Tensor:
    """Loss of a discriminator of domains; the target is trained to look like the source, the source is not.

    Args:
        discriminator: learns at full weight.
        source: what the model says of the source.
        target: what it says of the target; the gradient comes back reversed, times ``strength``.
        strength: a scalar; zero leaves the model alone.
    """
    ours, theirs = evident(source).softmax(1).detach(), evident(target).softmax(1)
    # The strength may change between steps, so it is a tensor, and weighs the gradient alone.
    hidden = theirs.detach() + strength * (theirs - theirs.detach())
    odds = discriminator(ours), discriminator(reverse_gradient(hidden))
    return (F.softplus(-odds[0]).mean() + F.softplus(odds[1]).mean()) / 2


def check_pixels(beside: Beside, objective: str) -> None:
    """Refuse images that have one label each."""
    if not beside.pixels:
        raise UserError(f"the objective {objective!r} is of pixels only: choose another objective.name")
