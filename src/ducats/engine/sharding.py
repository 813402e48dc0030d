"""Weights that are spread over the processes, where they do not fit one device with gradients and momentum.

torch's ``fully_shard``, through Fabric's ``ModelParallelStrategy``. A process keeps its slice of each weight,
and of what the optimiser knows of it. For a step, the weights of one block at a time are brought together.
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
from ducats.models import Evidential

LEAST = 0.01  # of all weights: what has fewer is brought together with the rest


def is_sharded(fabric: Fabric) -> bool:
    """Whether weights are spread over the processes."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def sharded(world: int) -> ModelParallelStrategy:
    """Fabric's strategy for weights that are spread over so many processes."""
    return ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)


def shard(model: Evidential, mesh: DeviceMesh) -> Evidential:
    """Spread a model's weights; every process begins with the first one's, as with DDP.

    What a list of layers holds is always called as a whole: such blocks are brought together one by one.

    Args:
        model: whole, and the same on all processes but for rounding.
        mesh: the processes.
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
        and not isinstance(block, nn.ModuleList | nn.ModuleDict)  # which nobody calls
    ]
    for block in reversed(dict.fromkeys(blocks)):  # the inner ones first
        fully_shard(block, mesh=line, reshard_after_forward=True)
    fully_shard(network, mesh=line, reshard_after_forward=True)
    return model


def check_alone(model: Evidential, fabric: Fabric) -> None:
    """Refuse to spread a model that has something beside it which reads its weights, or has its own."""
    heavy = [name for name, c in model.companions.items() if not getattr(c, "weightless", False)]
    if is_sharded(fabric) and heavy:
        raise UserError(
            "engine.strategy=fsdp is for networks alone, and this objective or query has weights beside it "
            f"({', '.join(heavy)}): use engine.strategy=ddp, or another objective or query"
        )


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Let each process hold all weights meanwhile: passes over its share of the images need no exchange.

    Args:
        model: nothing happens if its weights are not spread.
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
    """A state with whole tensors on the CPU, as one process alone would have it; every process has to ask.

    Args:
        state: of a network or an optimiser, nested as it likes.
        fabric: if weights are not spread, the state is returned as it is.
    """
    return _each(state, lambda tensor: tensor.full_tensor().cpu()) if is_sharded(fabric) else state


def _each(value: Any, change: Callable[[DTensor], Tensor]) -> Any:
    if isinstance(value, DTensor):
        return change(value)
    if not isinstance(value, dict):
        return value
    changed = copy.copy(value)  # a network's state has notes on its version beside it
    for name, inner in value.items():
        changed[name] = _each(inner, change)
    return changed


def spread(state: State, like: Mapping[str, Tensor], fabric: Fabric) -> State:
    """The reverse for a network: slices where it has slices.

    Args:
        state: whole tensors.
        like: the network's own state.
        fabric: if weights are not spread, the state is returned as it is.
    """
    if not is_sharded(fabric):
        return state
    slices: Any = copy.copy(state)
    for name in [name for name in slices if name in like]:  # in one order: each is an exchange
        slices[name] = _spread(slices[name], like[name])
    return slices  # type: ignore[no-any-return]


def spread_optimiser(state: Mapping[str, Any], optimiser: Optimizer, fabric: Fabric) -> dict[str, Any]:
    """The reverse for an optimiser: what it keeps of a parameter is sliced as the parameter is.

    Args:
        state: with whole tensors, as a checkpoint holds it.
        optimiser: whose parameters are meant, by their numbers.
        fabric: if weights are not spread, the state is returned as it is.
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
