"""MME, the training of CLUE (Saito et al., ICCV 2019; Prabhu et al., ICCV 2021): minimax entropy."""

import torch.nn.functional as F
from torch import nn

from ducats.dirichlet import EVIDENCE
from ducats.dirichlet import entropy as entropy_of
from ducats.errors import UserError
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import Beside, Companion, reverse_gradient, width_of
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import over_unlabelled
from ducats.rows import Output


class LastLayer(Companion):
    """The model's own last layer, to be applied once more; it has nothing of its own.

    Args:
        beside: what it is made for.
    """

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        found = last_layer(beside.model, beside.classes, width_of(beside, "the objective 'mme'"))
        if found is None:
            raise UserError(
                "the objective 'mme' applies the model's last layer once more, which must be linear: choose "
                "another objective.name, or a model whose logits come from one linear layer"
            )
        self._found = (found,)  # in a tuple, where torch does not look for modules: it is the model's
        self._evidence = EVIDENCE[getattr(beside.model, "evidence", "exp")]

    def again(self, output: Output) -> Output:
        """What the layer says of the same features, whose gradient is turned round."""
        layer, seen = self._found[0], output.features
        assert seen is not None
        seen = reverse_gradient(seen.to(layer.weight.dtype))
        weight = layer.weight.flatten(1)
        if output.size is not None:
            logits = F.conv2d(seen, weight[..., None, None], layer.bias)
            return output._replace(z=logits)  # evidence comes after interpolation
        return output._replace(z=self._evidence(F.linear(seen, weight, layer.bias)))


def last_layer(model: nn.Module, classes: int, width: int) -> nn.Linear | nn.Conv2d | None:
    """The layer that makes logits from features: the last linear one, or 1 x 1 convolution, of that shape."""
    found = None
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            shape = module.weight.shape
            if shape[:2] == (classes, width) and shape[2:].numel() == 1:
                found = module
    return found


def mme(
    model: Forward,
    batch: Batch,
    last: LastLayer,
    *,
    entropy: float = 0.1,
    temperature: float = 1.0,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy where labels are known; on unlabelled target a contest about the entropy.

    The last layer raises it, which draws its weights towards the target; the features lower it, which draws
    target images to those weights.

    Args:
        model: images to log alpha.
        batch: the step's data.
        last: the companion.
        entropy: weight of the unlabelled target's entropy, on both sides.
        temperature: of the softmax whose entropy it is.
        source: weight of the source's cross-entropy.
        target: weight of the labelled target's cross-entropy.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    losses = softmax(model, batch, source=source, target=target)
    if entropy:
        found = over_unlabelled(
            lambda images: last.again(model(images)), batch, lambda z: (entropy_of(z / temperature),)
        )
        if found is not None:
            losses["unlabelled/entropy"] = -entropy * found[0]
    return losses
