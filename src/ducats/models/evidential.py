"""Any network as an evidential model: images in, log alpha and features out; or maps, see `Output`."""

from typing import Any

import torch
from torch import Tensor, nn

from ducats.dirichlet import EVIDENCE
from ducats.rows import Output


class Evidential(nn.Module):
    """Turns a network's logits into ``Output(z, features)``; the one place that owns the evidence function.

    Args:
        network: maps images ``(N, channels, height, width)`` to logits ``(N, C, ...)``, or to a pair of
            logits and features. From logits alone, the features are what the linear layer that made them saw.
            Logits ``(N, C, h, w)`` are of pixels, on a grid of the network's own.
        evidence: a name from ``EVIDENCE``: how logits become ``z = log alpha``.
    """

    def __init__(self, network: nn.Module, evidence: str = "exp") -> None:
        super().__init__()
        self.network = network
        self.evidence = evidence
        self.companions = nn.ModuleDict()  # what learns beside the network in training, by name
        self._evidence = EVIDENCE[evidence]
        self._calls: list[
            tuple[nn.Module, Tensor, Tensor]
        ] = []  # linear layers in the forward pass under way
        self._hooks = {
            module: module.register_forward_hook(self._note)
            for module in network.modules()
            if isinstance(module, nn.Linear)
        }

    def _note(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self._calls.append((module, arguments[0], output))

    def _features(self, logits: Tensor | None) -> Tensor | None:
        """What the layer that made the logits saw; once it is known, only that layer is listened to.

        A network that tells its features itself has no such layer: what the others saw would only use memory.
        """
        head, seen = None, None
        for module, arrived, left in self._calls:
            if left is logits:
                head, seen = module, arrived
        for module in [m for m in self._hooks if m is not head]:
            self._hooks.pop(module).remove()
        return seen

    def forward(self, images: Tensor) -> Output:
        """Images as float32 in [0, 1] to log alpha in float32; maps stay logits, to be interpolated."""
        said = self.network(images)
        told = isinstance(said, tuple)
        found = self._features(None if told else said)
        logits, features = said if told else (said, found)
        self._calls.clear()  # nothing may outlive the step: it holds a graph
        if logits.ndim == 4:
            z = logits.float() if logits.dtype.itemsize < 4 else logits
            return Output(z, features, (images.shape[-2], images.shape[-1]), self._evidence)
        # Dirichlet maths leaves autocast: half floats carry three digits, and exp overflows at 12.
        with torch.autocast(device_type=images.device.type, enabled=False):
            z = self._evidence(logits.float() if logits.dtype.itemsize < 4 else logits)
        return Output(z, features)


def head_of(network: nn.Module, classes: int, width: int) -> Tensor | None:
    """Weights ``(classes, width)`` of the layer that makes the logits, on the CPU; None if none is linear."""
    found = None
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = module.weight.detach()
            if weight.shape[:2] == (classes, width) and weight[0, 0].numel() == 1:
                found = weight  # the last of them
    return None if found is None else found.reshape(classes, width).float().cpu()
