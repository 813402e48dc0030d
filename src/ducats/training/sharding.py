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

from ducats.models import EvidentialModel
from ducats.utils.errors import UserError

MIN_BLOCK_SHARE = 0.01  # share of all weights; smaller blocks are gathered with the rest of the network


def is_sharded(fabric: Fabric) -> bool:
    """Return whether weights are sharded over the ranks."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def make_fsdp_strategy(world_size: int) -> ModelParallelStrategy:
    """Return Fabric's strategy that shards weights over ``world_size`` ranks."""
    return ModelParallelStrategy(shard_model, data_parallel_size=world_size, tensor_parallel_size=1)


def shard_model(model: EvidentialModel, mesh: DeviceMesh) -> EvidentialModel:
    """Shard a model's weights, starting from those of rank 0, as in DDP.

    The elements of `nn.Sequential` and `nn.ModuleList` are called as a whole, so each is a block of its own.
    """
    network, data_mesh = model.network, mesh["data_parallel"]
    model.to(data_mesh.device_type)
    for tensor in (*network.parameters(), *network.buffers()):
        torch.distributed.broadcast(tensor.detach(), 0)
    min_weights = MIN_BLOCK_SHARE * sum(parameter.numel() for parameter in network.parameters())
    blocks = [
        block
        for layers in network.modules()
        if isinstance(layers, nn.Sequential | nn.ModuleList)
        for block in layers
        if sum(parameter.numel() for parameter in block.parameters()) >= max(1.0, min_weights)
        and not isinstance(block, nn.ModuleList | nn.ModuleDict)  # containers without a forward
    ]
    for block in reversed(dict.fromkeys(blocks)):  # inner blocks first
        fully_shard(block, mesh=data_mesh, reshard_after_forward=True)
    fully_shard(network, mesh=data_mesh, reshard_after_forward=True)
    return model


def check_shardable(model: EvidentialModel, fabric: Fabric) -> None:
    """Raise if weights are sharded and an auxiliary module has weights or reads those of the model."""
    modules_with_weights = [
        name for name, c in model.auxiliaries.items() if not getattr(c, "shardable", False)
    ]
    if is_sharded(fabric) and modules_with_weights:
        raise UserError(
            "engine.strategy=fsdp does not support auxiliary modules with weights, which this objective or "
            f"query has ({', '.join(modules_with_weights)}); use engine.strategy=ddp, or another objective "
            "or query"
        )


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Hold all weights on each rank within the context, for forward passes without communication.

    Does nothing if the weights are not sharded.
    """
    fsdp_modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in fsdp_modules:
        module.set_reshard_after_forward(False)
        module.unshard()
    try:
        yield
    finally:
        for module in fsdp_modules:
            module.reshard()
            module.set_reshard_after_forward(True)


_State = TypeVar("_State", bound=Mapping[str, Any])


def gather_state(state: _State, fabric: Fabric) -> _State:
    """Return a state dict with full tensors on the CPU. All ranks must call it.

    Args:
        state: of a network or an optimiser, possibly nested; returned unchanged if weights are not sharded.
    """
    return _map_dtensors(state, lambda tensor: tensor.full_tensor().cpu()) if is_sharded(fabric) else state


def _map_dtensors(value: Any, fn: Callable[[DTensor], Tensor]) -> Any:
    if isinstance(value, DTensor):
        return fn(value)
    if not isinstance(value, dict):
        return value
    changed = copy.copy(value)  # keeps the `_metadata` attribute of a network's state dict
    for name, inner in value.items():
        changed[name] = _map_dtensors(inner, fn)
    return changed


def shard_state(state: _State, reference: Mapping[str, Tensor], fabric: Fabric) -> _State:
    """Shard a network's full state dict.

    Args:
        state: full tensors; returned unchanged if weights are not sharded.
        reference: the network's current state dict.
    """
    if not is_sharded(fabric):
        return state
    sharded_state: Any = copy.copy(state)
    # Same order on all ranks: each is a collective.
    for name in [name for name in sharded_state if name in reference]:
        sharded_state[name] = _shard_like(sharded_state[name], reference[name])
    return sharded_state  # type: ignore[no-any-return]


def shard_optimiser_state(state: Mapping[str, Any], optimiser: Optimizer, fabric: Fabric) -> dict[str, Any]:
    """Shard an optimiser's full state dict like its parameters.

    Args:
        state: full tensors, as in a checkpoint; returned unchanged if weights are not sharded.
    """
    if not is_sharded(fabric):
        return dict(state)
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    sharded_state = {
        number: {
            # AdamW's step count is a scalar, the same on all ranks.
            name: _shard_like(value, parameters[number])
            if isinstance(value, Tensor) and value.ndim
            else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": sharded_state}


def _shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    if not isinstance(reference, DTensor):
        return tensor
    return distribute_tensor(tensor.to(reference.device), reference.device_mesh, reference.placements)
