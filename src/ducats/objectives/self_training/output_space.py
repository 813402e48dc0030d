"""Adversarial adaptation in output space (AdaptSegNet, Tsai et al., CVPR 2018), used as warm-up."""

import itertools
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

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
        """Compute a value per position, high for the first group: ``(N, C, h, w) -> (N, h', w')``."""
        values: Tensor = self.net(probability).squeeze(1)
        return values.float()


def output_space_adversarial_loss(
    discriminator: OutputDiscriminator,
    source: Output,
    target: Output,
    strength: float | Tensor,
    loss: Literal["bce", "least_squares"] = "bce",
) -> Tensor:
    """Loss of a domain discriminator; the model is trained to make target outputs look like source outputs.

    With ``s`` and ``t``, the discriminator's values for source and target:

    - ``bce``: ``(mean softplus(-s) + mean softplus(t)) / 2`` for the discriminator. The model receives the
      reversed gradient times ``strength``. The value is the discriminator's loss.
    - ``least_squares``: ``mean (s - 1)^2 + mean t^2`` for the discriminator, and
      ``strength * mean (t - 1)^2`` for the model (LSGAN, Mao et al., ICCV 2017). The value is the sum.

    Args:
        discriminator: trained with full weight.
        source: model output on source images; receives no gradient.
        target: model output on target images.
        strength: weight of the model's loss; it may change between steps if it is a tensor.
        loss: the pair of losses.
    """
    source_probability = coarse_log_alpha(source).softmax(1).detach()
    target_probability = coarse_log_alpha(target).softmax(1)
    source_values = discriminator(source_probability)
    if loss == "least_squares":
        target_values = discriminator(target_probability.detach())
        # Reversal does not give this gradient, 2 (t - 1). The fixed weights receive none.
        fixed_weights = {name: weight.detach() for name, weight in discriminator.named_parameters()}
        model_values = functional_call(discriminator, fixed_weights, (target_probability,))
        own_loss: Tensor = ((source_values - 1) ** 2).mean() + (target_values**2).mean()
        model_loss: Tensor = strength * ((model_values - 1) ** 2).mean()
        return own_loss + model_loss
    scaled_probability = target_probability.detach() + strength * (
        target_probability - target_probability.detach()
    )
    target_values = discriminator(reverse_gradient(scaled_probability))
    return (F.softplus(-source_values).mean() + F.softplus(target_values).mean()) / 2


def require_segmentation(context: AuxiliaryContext, objective: str) -> None:
    """Raise if the task is not segmentation."""
    if not context.per_pixel:
        raise UserError(f"the objective {objective!r} is for segmentation; choose another objective.name")
