"""Give a network logits for classes that appear after training has begun."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ducats.utils.errors import UserError


@torch.no_grad()
def grow_classes(network: nn.Module, classes_before: int, classes: int) -> None:
    """Give the layer that computes the logits more outputs, in place; they start at 0, without evidence.

    A network can define a method ``grow_classes(classes)``. Otherwise the last linear or convolutional layer
    with one output per class grows, together with parallel ones in the same ``nn.ModuleList``.
    """
    own_method = getattr(network, "grow_classes", None)
    if callable(own_method):
        own_method(classes)
        return
    found = [name for name, module in network.named_modules() if _n_outputs(module) == classes_before]
    if not found:
        raise UserError(
            f"a class was added, but {type(network).__name__} has no layer with {classes_before} outputs "
            "that could get one more; give it a method grow_classes(classes)"
        )
    parent_name, _, last = found[-1].rpartition(".")
    parent = network.get_submodule(parent_name)
    names = [last]
    if isinstance(parent, nn.ModuleList):
        names = [name for name, child in parent.named_children() if _n_outputs(child) == classes_before]
    for name in names:
        setattr(parent, name, _grown(getattr(parent, name), classes))


def _n_outputs(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return module.out_features
    return module.out_channels if isinstance(module, nn.Conv2d) and module.groups == 1 else None


def _grown(layer: nn.Module, outputs: int) -> nn.Module:
    """Return a layer with more outputs, whose weights and biases are 0."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    has_bias = layer.bias is not None
    grown: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Linear):
        grown = nn.Linear(layer.in_features, outputs, bias=has_bias)
    else:
        grown = nn.Conv2d(
            layer.in_channels,
            outputs,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=has_bias,
            padding_mode=layer.padding_mode,
        )
    grown = grown.to(layer.weight)
    grown.load_state_dict(grow_tensors(layer.state_dict(), grown.state_dict()))
    grown.requires_grad_(layer.weight.requires_grad)
    grown.train(layer.training)
    return grown


def grow_tensors(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, keep_new: bool = False
) -> dict[str, Any]:
    """Return saved tensors in the shape of the current ones with the same names.

    Args:
        saved: tensors of a network with fewer classes; other values are returned as they are.
        current: tensors of the network with all classes.
        keep_new: whether what is added has the current values; otherwise it is 0.
    """
    return {
        name: grow_tensor(value, current[name].shape, current[name] if keep_new else None)
        if isinstance(value, Tensor) and name in current
        else value
        for name, value in saved.items()
    }


def grow_tensor(saved: Tensor, shape: torch.Size, current: Tensor | None = None) -> Tensor:
    """Return a tensor in a larger shape, with values of another one, or zeros, where it has none."""
    if saved.shape == shape:
        return saved
    if saved.ndim != len(shape) or any(old > new for old, new in zip(saved.shape, shape, strict=True)):
        raise ValueError(f"a tensor of shape {tuple(saved.shape)} cannot grow to {tuple(shape)}")
    grown = saved.new_zeros(shape) if current is None else current.detach().to(saved, copy=True)
    grown[tuple(slice(0, size) for size in saved.shape)] = saved
    return grown
