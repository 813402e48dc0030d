"""Wrapper that makes any network an evidential model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ducats.dirichlet import EVIDENCE_FUNCTIONS, merge_components
from ducats.models.deeplab import DeepLab
from ducats.models.output import Output

_LayerCall = tuple[nn.Module, Tensor, Tensor]  # layer, input, output


class EvidentialModel(nn.Module):
    """Wrapper that turns a network's logits into an `Output`. It owns the evidence function.

    Args:
        network: maps images ``(N, channels, height, width)``, or their embeddings, to logits ``(N, C, ...)``,
            or to a tuple of logits, features and optionally features of an earlier stage. If it returns
            logits only, the features are the input of the linear layer that computed them. Logits
            ``(N, C, h, w)`` are per pixel, on the network's own grid.
        evidence: name in ``EVIDENCE_FUNCTIONS`` of the function from logits to ``z = log alpha``.
        groups: index of the class that each logit belongs to, if classes were merged.
    """

    def __init__(
        self, network: nn.Module, evidence: str = "exp", groups: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.evidence = evidence
        self.auxiliaries = nn.ModuleDict()  # auxiliary modules in training, by name
        self._evidence_fn = EVIDENCE_FUNCTIONS[evidence]
        self._groups = groups
        # Linear layers called in the current forward pass, with input and output.
        self._calls: list[_LayerCall] = []
        # The hooks refer to the list, not to the model: such a cycle would delay the release of its memory.
        self._hooks = {
            module: module.register_forward_hook(partial(_record_call, self._calls))
            for module in network.modules()
            if isinstance(module, nn.Linear)
        }

    def _features(self, logits: Tensor | None) -> Tensor | None:
        """Return the input of the layer that computed the logits, and remove the hooks of all other layers.

        If the network returns its features itself (``logits`` is None), all hooks are removed to save memory.
        """
        head, layer_input = None, None
        for module, call_input, call_output in self._calls:
            if call_output is logits:
                head, layer_input = module, call_input
        for module in [m for m in self._hooks if m is not head]:
            self._hooks.pop(module).remove()
        return layer_input

    def unwrap(self) -> nn.Module:
        """Return the network without the hooks of this wrapper, which must not be used any more."""
        while self._hooks:
            self._hooks.popitem()[1].remove()
        return self.network

    def forward(self, images: Tensor) -> Output:
        """Return log alpha in float32 for float32 images in [0, 1]; maps stay logits, to be interpolated."""
        output = self._forward(images)
        return output if self._groups is None else with_merged_classes(output, self._groups)

    def _forward(self, images: Tensor) -> Output:
        returned = self.network(images)
        has_features = isinstance(returned, tuple)
        head_input = self._features(None if has_features else returned)
        logits, features, *earlier = returned if has_features else (returned, head_input)
        self._calls.clear()  # the tensors hold the autograd graph of this step
        if logits.ndim == 4:
            z = logits.float() if logits.dtype.itemsize < 4 else logits
            size = (images.shape[-2], images.shape[-1])
            if isinstance(self.network, DeepLab):  # which also takes embeddings
                size = self.network.image_size(images)
            return Output(
                z, features, size, self._evidence_fn, earlier_features=earlier[0] if earlier else None
            )
        # No autocast for Dirichlet maths: half floats have three digits, and exp overflows at 12.
        with torch.autocast(device_type=images.device.type, enabled=False):
            z = self._evidence_fn(logits.float() if logits.dtype.itemsize < 4 else logits)
        return Output(z, features)


def with_merged_classes(output: Output, groups: Sequence[int]) -> Output:
    """Return an output with the evidence of each group of classes added; see `merge_components`."""
    if output.size is None:
        return output._replace(z=merge_components(output.z, groups))
    return output._replace(evidence=partial(_merged_evidence, output.evidence, groups))


def _merged_evidence(
    evidence_fn: Callable[[Tensor], Tensor], groups: Sequence[int], logits: Tensor
) -> Tensor:
    return merge_components(evidence_fn(logits), groups)


def _record_call(
    calls: list[_LayerCall], module: nn.Module, arguments: tuple[Any, ...], output: Tensor
) -> None:
    calls.append((module, arguments[0], output))


def find_head_weights(network: nn.Module, classes: int, width: int) -> Tensor | None:
    """Return the weights ``(classes, width)`` of the last matching layer, on the CPU; None if not found."""
    found = None
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = module.weight.detach()
            if weight.shape[:2] == (classes, width) and weight[0, 0].numel() == 1:
                found = weight  # the last match wins
    return None if found is None else found.reshape(classes, width).float().cpu()
