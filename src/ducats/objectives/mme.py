"""MME (Saito et al., ICCV 2019), the training of CLUE (Prabhu et al., ICCV 2021): minimax entropy."""

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
    """Reference to the model's last layer; has no parameters of its own."""

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        found = last_layer(beside.model, beside.classes, width_of(beside, "the objective 'mme'"))
        if found is None:
            raise UserError(
                "the objective 'mme' needs a model with a linear last layer; choose another objective.name "
                "or model.name"
            )
        self._found = (found,)  # in a tuple, so torch does not register it as a submodule
        self._evidence = EVIDENCE[getattr(beside.model, "evidence", "exp")]

    def again(self, output: Output) -> Output:
        """Apply the layer to the same features with reversed gradient."""
        layer, seen = self._found[0], output.features
        assert seen is not None
        seen = reverse_gradient(seen.to(layer.weight.dtype))
        weight = layer.weight.flatten(1)
        if output.size is not None:
            logits = F.conv2d(seen, weight[..., None, None], layer.bias)
            return output._replace(z=logits)  # evidence comes after interpolation
        return output._replace(z=self._evidence(F.linear(seen, weight, layer.bias)))


def last_layer(model: nn.Module, classes: int, width: int) -> nn.Linear | nn.Conv2d | None:
    """Return the last linear layer or 1 x 1 convolution from features to logits; None if there is none."""
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
    """Cross-entropy on labelled data; minimax entropy on unlabelled target data.

    The last layer maximises the entropy, which moves its weights towards the target. The features minimise
    it, which moves target images towards those weights.

    Args:
        entropy: weight of the entropy of unlabelled target data, for both sides.
        temperature: temperature of the softmax.
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
    """
    if temperature <= 0:
        raise ValueError(f"objective.params.temperature must be above 0, not {temperature}")
    losses = softmax(model, batch, source=source, target=target)
    if entropy:
        found = over_unlabelled(
            lambda images: last.again(model(images)), batch, lambda z: (entropy_of(z / temperature),)
        )
        if found is not None:
            losses["unlabelled/entropy"] = -entropy * found[0]
    return losses
