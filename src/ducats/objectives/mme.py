"""MME (Saito et al., ICCV 2019), the training of CLUE (Prabhu et al., ICCV 2021): minimax entropy."""

import torch.nn.functional as F
from torch import nn

from ducats.dirichlet import EVIDENCE_FUNCTIONS
from ducats.dirichlet import entropy as entropy_of
from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    ObjectiveSpec,
    features_of,
    require_feature_width,
    reverse_gradient,
)
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.reduction import unlabelled_means
from ducats.objectives.softmax import softmax
from ducats.utils.errors import UserError


class LastLayerRef(AuxiliaryModule):
    """Reference to the model's last layer; has no parameters of its own."""

    def __init__(self, context: AuxiliaryContext) -> None:
        super().__init__()
        layer = find_last_layer(
            context.model, context.classes, require_feature_width(context, "the objective 'mme'")
        )
        if layer is None:
            raise UserError(
                "the objective 'mme' needs a model with a linear last layer; choose another objective.name "
                "or model.name"
            )
        self._layer = (layer,)  # in a tuple, so torch does not register it as a submodule
        self._evidence = EVIDENCE_FUNCTIONS[getattr(context.model, "evidence", "exp")]

    def apply_reversed(self, output: Output) -> Output:
        """Apply the layer to the same features with reversed gradient."""
        layer = self._layer[0]
        features = reverse_gradient(features_of(output).to(layer.weight.dtype))
        weight = layer.weight.flatten(1)
        if output.size is not None:
            logits = F.conv2d(features, weight[..., None, None], layer.bias)
            return output._replace(z=logits)  # evidence comes after interpolation
        return output._replace(z=self._evidence(F.linear(features, weight, layer.bias)))


def find_last_layer(model: nn.Module, classes: int, width: int) -> nn.Linear | nn.Conv2d | None:
    """Return the last linear layer or 1 x 1 convolution from features to logits; None if there is none."""
    found = None
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            shape = module.weight.shape
            if shape[:2] == (classes, width) and shape[2:].numel() == 1:
                found = module
    return found


def mme(
    model: ForwardFn,
    batch: Batch,
    last_layer_ref: LastLayerRef,
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
    """
    if temperature <= 0:
        raise ValueError(f"objective.params.temperature must be above 0, not {temperature}")
    losses = softmax(model, batch, source=source, target=target)
    if entropy:
        entropies = unlabelled_means(
            lambda images: last_layer_ref.apply_reversed(model(images)),
            batch,
            lambda z: (entropy_of(z / temperature),),
        )
        if entropies is not None:
            losses["unlabelled/entropy"] = -entropy * entropies[0]
    return losses


MME_SPEC = ObjectiveSpec(mme, LastLayerRef)
