"""Sharding of weights over ranks, for models that do not fit one device with gradients and momentum.

Uses torch's ``fully_shard`` through Fabric's ``ModelParallelStrategy``. Each rank holds a shard of each
weight and of its optimiser state. In a step, weights are gathered one block at a time.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from ducats.errors import UserError
from ducats.models import EvidentialModel

LEAST = 0.01  # share of all weights; smaller blocks are gathered with the rest of the network


def is_sharded(fabric: Fabric) -> bool:
    """Return whether weights are sharded over the ranks."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def sharded(world: int) -> ModelParallelStrategy:
    """Return Fabric's strategy that shards weights over ``world`` ranks."""
    return ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)


def shard(model: EvidentialModel, mesh: DeviceMesh) -> EvidentialModel:
    """Shard a model's weights, starting from those of rank 0, as in DDP.

    The elements of `nn.Sequential` and `nn.ModuleList` are called as a whole, so each is a block of its own.

    Args:
        model: unsharded.
    """
    network, line = model.network, mesh["data_parallel"]
    model.to(line.device_type)
    for tensor in (*network.parameters(), *network.buffers()):
        torch.distributed.broadcast(tensor.detach(), 0)
    least = LEAST * sum(parameter.numel() for parameter in network.parameters())
    blocks = [
        block
        for layers in network.modules()
        if isinstance(layers, nn.Sequential | nn.ModuleList)
        for block in layers
        if sum(parameter.numel() for parameter in block.parameters()) >= max(1.0, least)
        and not isinstance(block, nn.ModuleList | nn.ModuleDict)  # containers without a forward
    ]
    for block in reversed(dict.fromkeys(blocks)):  # inner blocks first
        fully_shard(block, mesh=line, reshard_after_forward=True)
    fully_shard(network, mesh=line, reshard_after_forward=True)
    return model


def check_alone(model: EvidentialModel, fabric: Fabric) -> None:
    """Raise if weights are sharded and an auxiliary module has weights or reads those of the model."""
    heavy = [name for name, c in model.auxiliaries.items() if not getattr(c, "shardable", False)]
    if is_sharded(fabric) and heavy:
        raise UserError(
            "engine.strategy=fsdp does not support auxiliary modules with weights, which this objective or "
            f"query has ({', '.join(heavy)}); use engine.strategy=ddp, or another objective or query"
        )


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Hold all weights on each rank within the context, for forward passes without communication.

    Does nothing if the weights are not sharded.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True)


State = TypeVar("State", bound=Mapping[str, Any])


def gathered(state: State, fabric: Fabric) -> State:
    """Return a state dict with full tensors on the CPU. All ranks must call it.

    Args:
        state: of a network or an optimiser, possibly nested; returned unchanged if weights are not sharded.
    """
    return _each(state, lambda tensor: tensor.full_tensor().cpu()) if is_sharded(fabric) else state


def _each(value: Any, change: Callable[[DTensor], Tensor]) -> Any:
    if isinstance(value, DTensor):
        return change(value)
    if not isinstance(value, dict):
        return value
    changed = copy.copy(value)  # keeps the `_metadata` attribute of a network's state dict
    for name, inner in value.items():
        changed[name] = _each(inner, change)
    return changed


def spread(state: State, like: Mapping[str, Tensor], fabric: Fabric) -> State:
    """Shard a network's full state dict.

    Args:
        state: full tensors; returned unchanged if weights are not sharded.
        like: the network's current state dict.
    """
    if not is_sharded(fabric):
        return state
    slices: Any = copy.copy(state)
    for name in [name for name in slices if name in like]:  # same order on all ranks: each is a collective
        slices[name] = _spread(slices[name], like[name])
    return slices  # type: ignore[no-any-return]


def spread_optimiser(state: Mapping[str, Any], optimiser: Optimizer, fabric: Fabric) -> dict[str, Any]:
    """Shard an optimiser's full state dict like its parameters.

    Args:
        state: full tensors, as in a checkpoint; returned unchanged if weights are not sharded.
    """
    if not is_sharded(fabric):
        return dict(state)
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    kept = {
        number: {
            name: _spread(value, parameters[number]) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": kept}


def _spread(tensor: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
