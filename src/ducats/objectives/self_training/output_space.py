"""Adversarial adaptation in output space (AdaptSegNet, Tsai et al., CVPR 2018), used as warm-up."""

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from ducats.models.output import Output
from ducats.objectives.auxiliary import AuxiliaryContext, reverse_gradient
from ducats.objectives.self_training.pseudo_label_ops import coarse_log_alpha
from ducats.utils.errors import UserError


class OutputDiscriminator(nn.Module):
    """Discriminator of two groups of images by their class probabilities, at each position of a coarser map.

    Args:
        hidden: channels of the first layer; the next two layers have 2 and 4 times as many.
    """

    def __init__(self, classes: int, hidden: int = 64) -> None:
        super().__init__()
        widths, layers = [classes, hidden, 2 * hidden, 4 * hidden], list[nn.Module]()
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 3, padding=1))

    def forward(self, probability: Tensor) -> Tensor:
        """Compute the log odds of the first group, ``(N, C, h, w) -> (N, h', w')``."""
        log_odds: Tensor = self.net(probability).squeeze(1)
        return log_odds.float()


def output_space_adversarial_loss(
    discriminator: OutputDiscriminator, source: Output, target: Output, strength: Tensor
) -> Tensor:
    """Loss of a domain discriminator; the model is trained to make target outputs look like source outputs.

    Args:
        discriminator: trained with full weight.
        source: model output on source images; receives no gradient.
        target: model output on target images; receives the reversed gradient times ``strength``.
        strength: scalar; 0 does not train the model.
    """
    source_probability = coarse_log_alpha(source).softmax(1).detach()
    target_probability = coarse_log_alpha(target).softmax(1)
    # The strength may change between steps, so it is a tensor. It scales only the gradient.
    scaled_probability = target_probability.detach() + strength * (
        target_probability - target_probability.detach()
    )
    log_odds = discriminator(source_probability), discriminator(reverse_gradient(scaled_probability))
    return (F.softplus(-log_odds[0]).mean() + F.softplus(log_odds[1]).mean()) / 2


def require_segmentation(context: AuxiliaryContext, objective: str) -> None:
    """Raise if the task is not segmentation."""
    if not context.per_pixel:
        raise UserError(f"the objective {objective!r} is for segmentation; choose another objective.name")
