"""Checkpoints during a run and the weights at its end. Rank 0 writes them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from safetensors.torch import save
from torch import Tensor, nn

from ducats.models.growing import grow_tensor, grow_tensors
from ducats.models.lora import merge_lora
from ducats.run.context import RunContext, load_weights
from ducats.runfolder import checksums
from ducats.runfolder.run_folder import RunFolder
from ducats.training.distributed import all_ranks_or_raise, on_rank_zero
from ducats.training.fit import adapt_optimiser_state
from ducats.training.sharding import gather_state, shard_optimiser_state, shard_state
from ducats.utils.errors import UserError

_FILE_SYNC_TIMEOUT_SECONDS = 30.0  # for a shared file system to show all hosts the files of rank 0


def save_checkpoint(context: RunContext, epoch: int, seconds: float) -> None:
    """Write a checkpoint, gathered from all shards; all processes must call this.

    Args:
        epoch: number of completed epochs.
        seconds: time that they took.
    """
    model, fabric = context.model, context.fabric
    state = {
        "epoch": epoch,
        "seconds": seconds,
        "network": gather_state(_select_state(context, model.network, frozen=False), fabric),
        "auxiliaries": model.auxiliaries.state_dict(),
        "optimiser": gather_state(context.optimiser.state_dict(), fabric),
        "precision": fabric.strategy.precision.state_dict(),  # the loss scale of float16
    }
    if context.ema is not None:
        state["ema"] = _select_state(context, context.ema.module, frozen=False)
    path = context.run_folder.checkpoint_path
    context.on_rank_zero(lambda: checksums.write(path, lambda file: torch.save(state, file)))


def restore_checkpoint(context: RunContext) -> tuple[int, float]:
    """Load the latest checkpoint, if there is one; return its epoch and seconds.

    If classes were added since, its tensors grow: new logits start at 0, without evidence.
    """
    model, optimiser, fabric = context.model, context.optimiser, context.fabric
    state = load_checkpoint(context.run_folder)
    # Records of later epochs belong to training that was lost; it is repeated and writes them again.
    context.on_rank_zero(lambda: context.run_folder.discard_after(state["epoch"] if state else -1))
    if state is None:
        return 0, 0.0
    network = model.network
    if len(context.classes) > len(context.classes.initial):
        state = _with_added_classes(context, state)
    frozen = _select_state(context, network, frozen=True)
    network.load_state_dict({**frozen, **shard_state(state["network"], network.state_dict(), fabric)})
    model.auxiliaries.load_state_dict(state.get("auxiliaries", {}))
    optimiser.load_state_dict(shard_optimiser_state(state["optimiser"], optimiser, fabric))
    performance = context.performance
    adapt_optimiser_state(
        optimiser, fused=bool(performance.fused_optimiser), capturable=bool(performance.cuda_graphs)
    )
    fabric.strategy.precision.load_state_dict(state["precision"])
    if context.ema is not None:
        context.ema.module.load_state_dict({**frozen, **state["ema"]})
    return state["epoch"], state["seconds"]


def _with_added_classes(context: RunContext, state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the tensors in the shapes that they have with the classes added since."""
    network_shapes = context.model.network.state_dict()
    parameters = [parameter for group in context.optimiser.param_groups for parameter in group["params"]]
    slots = state["optimiser"]["state"]
    grown = {
        "network": grow_tensors(state["network"], network_shapes),
        "auxiliaries": grow_tensors(
            state["auxiliaries"], context.model.auxiliaries.state_dict(), keep_new=True
        ),
        "optimiser": {
            **state["optimiser"],
            "state": {
                index: {
                    name: grow_tensor(value, parameters[index].shape)
                    if isinstance(value, Tensor) and value.ndim
                    else value
                    for name, value in slot.items()
                }
                for index, slot in slots.items()
            },
        },
    }
    if "ema" in state:
        grown["ema"] = grow_tensors(state["ema"], network_shapes)
    return {**state, **grown}


def save_frozen_weights(context: RunContext) -> None:
    """Write the weights of a frozen backbone once: they may be large, and a checkpoint is written often."""
    frozen = gather_state(_select_state(context, context.model.network, frozen=True), context.fabric)
    path = context.run_folder.frozen_path

    def write() -> None:
        if frozen and not path.exists():
            write_weights(path, frozen)

    context.on_rank_zero(write)


def _select_state(context: RunContext, network: nn.Module, *, frozen: bool) -> dict[str, Any]:
    """Return the state of a network's frozen backbone, or all else."""
    state = network.state_dict()
    return {name: tensor for name, tensor in state.items() if (name in context.frozen_names) == frozen}


def save_model(context: RunContext) -> None:
    """Write the final weights, with LoRA updates merged, which marks the run as finished."""
    network = context.model.network if context.ema is None else context.ema.module
    weights = merge_lora(network, gather_state(network.state_dict(), context.fabric))
    context.on_rank_zero(lambda: write_model(context.run_folder, weights))


def load_checkpoint(run_folder: RunFolder) -> dict[str, Any] | None:
    """Load the latest checkpoint, without executing code from the file."""
    path = run_folder.checkpoint_path
    if not path.exists():
        return None
    checksums.verify(path)
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise checksums.corrupt(path, type(error).__name__) from error


def write_model(run_folder: RunFolder, state: Mapping[str, Tensor]) -> None:
    """Save the final weights."""
    write_weights(run_folder.model_path, state)
    checksums.confirm(run_folder.model_path)


def write_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write named tensors to a .safetensors file of a run."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    checksums.write(path, lambda file: file.write(save(tensors)))


def load_model(run_folder: RunFolder) -> dict[str, Tensor]:
    """Load the final weights."""
    path = run_folder.model_path
    if not path.exists():
        raise UserError(f"{run_folder.path} has no model yet: run the same `ducats run` command to finish it")
    return load_weights(path)


def check_shared_folder(
    run_folder: RunFolder, fabric: Fabric, timeout_seconds: float = _FILE_SYNC_TIMEOUT_SECONDS
) -> None:
    """Raise if hosts do not share the run folder: each would resume from a different state.

    Rank 0 must have claimed the folder.
    """
    if fabric.world_size == 1:
        return
    expected = on_rank_zero(fabric, lambda: _file_states(run_folder))

    def wait_until_visible() -> None:
        deadline = time.monotonic() + timeout_seconds
        while _file_states(run_folder) != expected:
            if time.monotonic() > deadline:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} does not see the files "
                    f"that rank 0 wrote to {run_folder.path}: use an --out that all hosts share"
                )
            time.sleep(0.1)

    all_ranks_or_raise(fabric, wait_until_visible)


def _file_states(run_folder: RunFolder) -> list[tuple[int, int] | None]:
    """Return size and modification time of the files that identify the state of a run."""
    paths = (run_folder.config_path, run_folder.data_path, run_folder.checkpoint_path, run_folder.model_path)
    found = [path.stat() if path.exists() else None for path in paths]
    return [None if stat is None else (stat.st_size, int(stat.st_mtime)) for stat in found]
