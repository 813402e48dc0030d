"""Any network as an evidential model: logits in, log alpha and features out."""

from typing import Any

import torch
from torch import Tensor, nn

from ducats.dirichlet import EVIDENCE
from ducats.rows import Output


class Evidential(nn.Module):
    """Turns a network's logits into ``Output(z, features)``; the one place that owns the evidence function.

    Args:
        network: maps images ``(N, channels, height, width)`` to logits ``(N, C, ...)``, or to a pair of
            logits and features. From logits alone, the features are what its last linear layer sees.
        evidence: a name from ``EVIDENCE``: how logits become ``z = log alpha``.
    """

    def __init__(self, network: nn.Module, evidence: str = "exp") -> None:
        super().__init__()
        self.network = network
        self._evidence = EVIDENCE[evidence]
        self._seen: Tensor | None = None
        linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
        if linear:
            linear[-1].register_forward_pre_hook(self._see)

    def _see(self, _module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._seen = arguments[0]

    def forward(self, images: Tensor) -> Output:
        """Images as float32 in [0, 1] to log alpha in float32."""
        said = self.network(images)
        seen, self._seen = self._seen, None  # nothing may outlive the step: it holds a graph
        logits, features = said if isinstance(said, tuple) else (said, seen)
        # Dirichlet maths leaves autocast: half floats carry three digits, and exp overflows at 12.
        with torch.autocast(device_type=images.device.type, enabled=False):
            z = self._evidence(logits.float() if logits.dtype.itemsize < 4 else logits)
        return Output(z, features)
