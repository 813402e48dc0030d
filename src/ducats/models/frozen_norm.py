"""Frozen batch norms: constants per channel, applied as one multiply-add.

Batch statistics of a few large images are unreliable, so segmentation networks keep those of the pretraining.
Weights and statistics are buffers here, so neither the optimiser nor the training mode changes them.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ducats.utils.errors import UserError

# Names of a batch norm's tensors in a state dict.
_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")


class _CachedAffine(NamedTuple):
    """Cached scale and shift, and the tensors they were computed from."""

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]  # torch's counter of in-place changes, e.g. by a loaded state
    scale: Tensor
    shift: Tensor


class FrozenNorm(nn.Module):
    """Batch norm in evaluation mode, in the dtype of its input.

    Only the scale is saved for the backward pass; a batch norm in evaluation mode saves its input.

    Args:
        norm: batch norm to freeze; an activation that timm merged into it is kept.
        eps: added to the variance; None: that of the norm.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, eps: float | None = None) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError("a batch norm without running statistics cannot be frozen")
        ones = torch.ones_like(norm.running_mean)
        self.register_buffer("weight", ones if norm.weight is None else norm.weight.detach().clone())
        self.register_buffer("bias", 0 * ones if norm.bias is None else norm.bias.detach().clone())
        self.register_buffer("running_mean", norm.running_mean.clone())
        self.register_buffer("running_var", norm.running_var.clone())
        self.eps = norm.eps if eps is None else eps
        # timm's norms with an activation apply dropout before it; neither has tensors.
        after = [norm.get_submodule(name) for name in ("drop", "act") if hasattr(norm, name)]
        self.after = nn.Sequential(*[m for m in after if not isinstance(m, nn.Identity)])
        # float32 and, under autocast, a half-precision dtype
        self._cache: dict[torch.dtype, _CachedAffine] = {}

    def forward(self, maps: Tensor) -> Tensor:
        """Normalise maps ``(N, C, H, W)`` and keep their dtype."""
        cached = self._cache.get(maps.dtype)
        if cached is None or not self._is_current(cached):
            cached = self._compute(maps.dtype)
        normed = torch.addcmul(cached.shift, maps, cached.scale)
        return self.after(normed) if len(self.after) else normed

    def _tensors(self) -> tuple[Tensor, ...]:
        return tuple(self._buffers[name] for name in _NORM_TENSORS)  # type: ignore[misc]

    def _is_current(self, cached: _CachedAffine) -> bool:
        tensors = self._tensors()
        same = all(new is old for new, old in zip(tensors, cached.tensors, strict=True))
        return same and all(_version(n) == v for n, v in zip(tensors, cached.versions, strict=True))

    def _compute(self, dtype: torch.dtype) -> _CachedAffine:
        """Compute scale and shift, and cache them until a tensor changes or moves."""
        # Leave inference mode: its tensors cannot be used in a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            tensors = self._tensors()
            weight, bias, mean, var = tensors
            scale = weight * (var + self.eps).rsqrt()
            shift = bias - mean * scale
            cached = _CachedAffine(
                tensors,
                tuple(map(_version, tensors)),
                scale.to(dtype).reshape(-1, 1, 1),
                shift.to(dtype).reshape(-1, 1, 1),
            )
        # Results in a CUDA graph under capture exist only after its replay, so they must not be cached.
        if not (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._cache[dtype] = cached
        return cached

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # from a norm that was not frozen
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _version(tensor: Tensor) -> int:
    """Return the number of in-place changes of a tensor; -1 for inference tensors, which do not track it."""
    return -1 if tensor.is_inference() else tensor._version


def freeze_norms(
    network: nn.Module, eps: float | None = None, *, names: Collection[str] | None = None
) -> int:
    """Replace batch norms of a network by frozen ones, in place; return their number.

    Args:
        network: network to modify; other kinds of norms have no batch statistics and stay.
        eps: added to the variances; None: that of each norm. The published networks use 0.
        names: only norms with these names; None: all.
    """
    if eps is not None and not 0 <= eps < float("inf"):
        raise UserError(f"model.params.norm_eps is {eps}, but must be 0, a small positive number, or null")
    count = 0
    for name, module in list(network.named_modules()):
        if not isinstance(module, nn.BatchNorm2d) or module.running_var is None:
            continue
        if names is not None and name not in names:
            continue
        own = module.eps if eps is None else eps
        if bool((module.running_var + own <= 0).any()):
            raise UserError(
                f"the norm {name!r} has a channel with variance 0, which needs an eps; set "
                "model.params.norm_eps to null or a small positive number"
            )
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, FrozenNorm(module, eps))
        count += 1
    return count
