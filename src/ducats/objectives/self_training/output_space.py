"""Adversarial adaptation in output space (AdaptSegNet, Tsai et al., CVPR 2018), used as warm-up."""

import itertools

from torch import Tensor, nn
from torch.func import functional_call

from ducats.models.output import Output
from ducats.objectives.auxiliary import AuxiliaryContext
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
    discriminator: OutputDiscriminator, source: Output, target: Output, weight: float
) -> Tensor:
    """Sum of two losses: of a domain discriminator, and of the model, which makes target look like source.

    With ``s`` and ``t``, the discriminator's values for source and target, the discriminator minimises
    ``mean (s - 1)^2 + mean t^2``, and the model ``weight * mean (t - 1)^2`` (LSGAN, Mao et al., ICCV 2017).

    Args:
        source: model output on source images; receives no gradient.
        target: model output on target images.
        weight: weight of the model's loss.
    """
    source_probability = coarse_log_alpha(source).softmax(1).detach()
    target_probability = coarse_log_alpha(target).softmax(1)
    source_values = discriminator(source_probability)
    target_values = discriminator(target_probability.detach())
    own_loss: Tensor = ((source_values - 1) ** 2).mean() + (target_values**2).mean()
    fixed_weights = {name: parameter.detach() for name, parameter in discriminator.named_parameters()}
    model_values = functional_call(discriminator, fixed_weights, (target_probability,))
    model_loss: Tensor = weight * ((model_values - 1) ** 2).mean()
    return own_loss + model_loss


def require_segmentation(context: AuxiliaryContext, objective: str) -> None:
    """Raise if the task is not segmentation."""
    if not context.per_pixel:
        raise UserError(f"the objective {objective!r} is for segmentation; choose another objective.name")
