"""Batch norms that no longer learn: four fixed numbers per channel, applied as one multiply-add.

Small batches of large images cannot estimate a batch's statistics, so segmentation networks keep those of
their pretraining. Weights and statistics are buffers here: no optimiser sees them and no mode changes them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ducats.errors import UserError

NUMBERS = ("weight", "bias", "running_mean", "running_var")  # the names that a batch norm's have in files


class _Fixed(NamedTuple):
    """What was computed once, and from what."""

    numbers: tuple[Tensor, ...]
    versions: tuple[int, ...]  # torch counts changes in place, such as a loaded state
    scale: Tensor
    shift: Tensor


class FrozenNorm(nn.Module):
    """What a batch norm does in evaluation, in the dtype of its input.

    Nothing but the scale is kept for the backward pass: a batch norm in evaluation keeps its input.

    Args:
        norm: the batch norm; an activation that timm put into it stays.
        eps: added to the variance; None for the norm's own.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, eps: float | None = None) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise ValueError("a batch norm without statistics of its own cannot be frozen")
        ones = torch.ones_like(norm.running_mean)
        self.register_buffer("weight", ones if norm.weight is None else norm.weight.detach().clone())
        self.register_buffer("bias", 0 * ones if norm.bias is None else norm.bias.detach().clone())
        self.register_buffer("running_mean", norm.running_mean.clone())
        self.register_buffer("running_var", norm.running_var.clone())
        self.eps = norm.eps if eps is None else eps
        # timm's norms with an activation drop before they activate; the places have no tensors.
        after = [norm.get_submodule(name) for name in ("drop", "act") if hasattr(norm, name)]
        self.after = nn.Sequential(*[m for m in after if not isinstance(m, nn.Identity)])
        self._fixed: dict[torch.dtype, _Fixed] = {}  # float32 and, under autocast, a half type

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``(N, C, H, W)`` to the same, in their dtype."""
        fixed = self._fixed.get(maps.dtype)
        if fixed is None or not self._holds(fixed):
            fixed = self._compute(maps.dtype)
        normed = torch.addcmul(fixed.shift, maps, fixed.scale)
        return self.after(normed) if len(self.after) else normed

    def extra_repr(self) -> str:
        """Channels and eps."""
        return f"{len(self.weight)}, eps={self.eps}"

    def _numbers(self) -> tuple[Tensor, ...]:
        return tuple(self._buffers[name] for name in NUMBERS)  # type: ignore[misc]

    def _holds(self, fixed: _Fixed) -> bool:
        numbers = self._numbers()
        same = all(now is then for now, then in zip(numbers, fixed.numbers, strict=True))
        return same and all(_version(n) == v for n, v in zip(numbers, fixed.versions, strict=True))

    def _compute(self, dtype: torch.dtype) -> _Fixed:
        """Scale and shift, kept until a number changes or moves."""
        # Made outside of inference mode also when it is on: its tensors could not serve a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            numbers = self._numbers()
            weight, bias, mean, var = numbers
            scale = weight * (var + self.eps).rsqrt()
            shift = bias - mean * scale
            fixed = _Fixed(
                numbers,
                tuple(map(_version, numbers)),
                scale.to(dtype).reshape(-1, 1, 1),
                shift.to(dtype).reshape(-1, 1, 1),
            )
        # What a recorded step computes is there only after its replay: not to be kept for others.
        if not (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._fixed[dtype] = fixed
        return fixed

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)  # of a norm that still learnt
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _version(number: Tensor) -> int:
    """How often a tensor was changed in place; one that was made in inference mode does not count."""
    return -1 if number.is_inference() else number._version


def freeze_norms(network: nn.Module, eps: float | None = None) -> int:
    """Replace every batch norm of a network by a frozen one, in place; return their number.

    Args:
        network: other kinds of norms have no statistics of a batch, and stay.
        eps: added to the variances; None for each norm's own. The published networks have 0.
    """
    if eps is not None and not 0 <= eps < float("inf"):
        raise UserError(f"model.knobs.norm_eps is {eps}: give 0, a small positive number, or null")
    count = 0
    for name, module in list(network.named_modules()):
        if not isinstance(module, nn.BatchNorm2d) or module.running_var is None:
            continue
        own = module.eps if eps is None else eps
        if bool((module.running_var + own <= 0).any()):
            raise UserError(
                f"the norm {name!r} has a channel whose variance is 0, and no eps: leave "
                "model.knobs.norm_eps at null, or give a small positive number"
            )
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, FrozenNorm(module, eps))
        count += 1
    return count
