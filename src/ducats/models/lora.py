"""LoRA: train a low-rank update of each linear layer of a backbone, whose own weights stay as they are."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ducats.utils.errors import UserError


class LoRALinear(nn.Linear):
    """A frozen linear layer plus a trained low-rank update: ``(W + B A) x``.

    A state without ``lora_a`` is that of a merged layer; loading it makes this a plain linear layer.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.requires_grad_(False)
        self.lora_a: nn.Parameter | None = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_b: nn.Parameter | None = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer and its update."""
        outputs = super().forward(inputs)
        if self.lora_a is None or self.lora_b is None:
            return outputs
        return outputs + F.linear(F.linear(inputs, self.lora_a), self.lora_b)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}lora_a" not in state_dict:
            self.lora_a = self.lora_b = None
            self.requires_grad_(True)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def add_lora(trunk: nn.Module, rank: int, example: Tensor, name: str) -> None:
    """Freeze a backbone and add an update of this rank to its linear layers.

    Only layers that a forward pass calls are changed: some networks read the weights of a layer instead.

    Args:
        example: a batch of images.
        name: of the backbone, for the message.
    """
    called = set[nn.Module]()
    layers = {key: module for key, module in trunk.named_modules() if type(module) is nn.Linear}
    hooks = [layer.register_forward_hook(lambda module, *_: called.add(module)) for layer in layers.values()]
    was_training = trunk.training
    with torch.no_grad():
        trunk.eval()(example)
    trunk.train(was_training)
    for hook in hooks:
        hook.remove()
    if not called:
        raise UserError(
            f"model.params.lora_rank needs a backbone with linear layers, e.g. a transformer, but {name!r} "
            "has none; set it to null"
        )
    trunk.requires_grad_(False)
    for key, layer in layers.items():
        if layer in called:
            parent, _, attribute = key.rpartition(".")
            setattr(trunk.get_submodule(parent), attribute, LoRALinear(layer, rank))


def merge_lora(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the updates to the weights in the network's state; return the state of the network without LoRA."""
    merged = dict(state)
    for name, layer in network.named_modules():
        if isinstance(layer, LoRALinear) and f"{name}.lora_a" in merged:
            update = merged.pop(f"{name}.lora_b") @ merged.pop(f"{name}.lora_a")
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + update
    return merged
