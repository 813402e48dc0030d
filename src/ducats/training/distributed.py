"""Distributed training: Fabric setup, collectives, error propagation between ranks."""

import inspect
import logging
import os
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ducats.training import launch_environment
from ducats.training.sharding import make_fsdp_strategy
from ducats.utils import resources
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.resources import available_cores

_T = TypeVar("_T")


def make_fabric(
    device: str = "auto",
    processes: int = 1,
    precision: str = "auto",
    *,
    nodes: int = 1,
    strategy: str = "auto",
    deterministic: bool = False,
) -> Fabric:
    """Set up device, precision and processes.

    Args:
        device: auto, cpu, cuda or mps.
        processes: per machine; on a GPU machine, one per device.
        precision: Fabric's name, e.g. ``32-true`` or ``bf16-mixed``; ``auto``: see ``resolve_precision``.
        strategy: ddp replicates the weights, fsdp shards them; auto: ddp if there are several processes.
        deterministic: use deterministic algorithms only, also on a GPU, where they are slower.
    """
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # hides its advice on matrix precision
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > available_cores():
        torch.set_num_threads(available_cores())  # torch does not know the CPU limit of a container
    # Benchmarking kernels takes seconds for each new shape, and each round brings new shapes.
    torch.backends.cudnn.benchmark = False
    precision = resolve_precision(precision, device)
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise UserError(f"unknown device {device!r}; use auto, cpu, cuda or mps")
    if device == "cuda" and torch.cuda.device_count() < processes:
        raise UserError(
            f"{processes} CUDA device(s) requested, {torch.cuda.device_count()} found; use --device cpu"
        )
    if precision == "16-mixed" and (device == "cpu" or not torch.cuda.is_available()):
        raise UserError("engine.precision=16-mixed needs a GPU; use bf16-mixed or 32-true")
    try:
        return Fabric(
            accelerator=device,
            devices=processes,
            num_nodes=nodes,
            strategy=_make_strategy(strategy, processes * nodes, precision),
            precision=precision,  # type: ignore[arg-type]
            plugins=_cluster_environment(processes * nodes),
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"cannot use engine.device={device!r} with {processes} process(es): {error}; set engine.device "
            "to auto, cpu, cuda or mps, or fix its driver"
        ) from error


def _make_strategy(name: str, world_size: int, precision: str) -> str | Strategy:
    if name not in ("auto", "ddp", "fsdp"):
        raise UserError(f"unknown strategy {name!r}; use auto, ddp or fsdp")
    if name == "fsdp":
        if precision not in ("32-true", "bf16-mixed"):
            raise UserError(
                f"engine.strategy=fsdp cannot be combined with engine.precision={precision}; use 32-true or "
                "bf16-mixed"
            )
        return make_fsdp_strategy(world_size)
    if world_size == 1:
        return "auto"
    # A step has several forward passes before the backward: buffers must not be overwritten in between.
    ddp_parameters = inspect.signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {next(name for name in _BUFFER_SYNC_OPTIONS if name in ddp_parameters): False}
    return DDPStrategy(timeout=TIMEOUT, **options)


TIMEOUT = timedelta(days=1)  # rank 0 may embed for hours while others wait; `PeerMonitor` notices dead ones

# Name of DDP's option in newer and in older versions of torch.
_BUFFER_SYNC_OPTIONS = ("forward_sync_buffers", "broadcast_buffers")


def _cluster_environment(world_size: int) -> ClusterEnvironment:
    """Return where Fabric reads the ranks; a single process ignores a surrounding torchrun or SLURM job."""
    launcher = "own" if world_size == 1 else launch_environment.detect_launcher()
    if launcher == "torchrun":
        return TorchElasticEnvironment()
    return SLURMEnvironment() if launcher == "slurm" else LightningEnvironment()


def resolve_precision(precision: str, device: str) -> str:
    """Resolve ``auto``: bfloat16 on GPUs that support it, else float32."""
    if precision != "auto":
        return precision
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    # Before Ampere, bfloat16 is emulated and slower than float32.
    return "bf16-mixed" if cuda and torch.cuda.get_device_capability() >= (8, 0) else "32-true"


def has_gpu(device: str) -> bool:
    """Return whether a run with this setting of ``engine.device`` uses a GPU."""
    if device == "auto":
        return torch.cuda.is_available() or torch.backends.mps.is_available()
    return device != "cpu"


def precision_name(fabric: Fabric) -> str:
    """Return Fabric's name of the precision."""
    return str(fabric.strategy.precision.precision)


def autocast_dtype(fabric: Fabric) -> torch.dtype | None:
    """Return the 16-bit dtype of autocast; None: forward passes use the dtype of the weights."""
    return {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision_name(fabric))


def rank_share(batches: Sequence[_T], fabric: Fabric) -> Sequence[_T]:
    """Return this rank's share of the batches; they are not split, so results match for any world size."""
    return batches[fabric.global_rank :: fabric.world_size]


def all_gather_rows(local: Tensor, fabric: Fabric) -> Tensor:
    """Gather rows of all ranks, ``(n_rank, ...) -> (sum n_rank, ...)``, without padding or duplicates."""
    if fabric.world_size == 1:
        return local
    counts = _all_gather(torch.tensor([len(local)]), fabric).flatten().tolist()
    padded = local.new_zeros(max(counts), *local.shape[1:])
    padded[: len(local)] = local
    gathered = _all_gather(padded, fabric)
    return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])


def _all_gather(local: Tensor, fabric: Fabric) -> Tensor:
    """Stack the tensors of all ranks; communication runs on the device of the process group."""
    on_device = local.to(fabric.device).contiguous()
    gathered = [torch.empty_like(on_device) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(gathered, on_device)
    return torch.stack(gathered).to(local.device)


def all_reduce_sum(local: Tensor, fabric: Fabric) -> Tensor:
    """Sum over the ranks."""
    if fabric.world_size == 1:
        return local
    total = fabric.all_reduce(local.to(fabric.device, copy=True), reduce_op="sum")
    assert isinstance(total, Tensor)
    return total.to(local.device)


def broadcast_buffers(module: nn.Module, fabric: Fabric) -> None:
    """Copy the buffers of rank 0 to all ranks; computed separately, they may differ in rounding."""
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, 0)


def average_buffers(model: nn.Module, fabric: Fabric) -> None:
    """Average batch-norm statistics, which each rank collects on its own share."""
    if fabric.world_size == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(all_reduce_sum(buffer, fabric) / fabric.world_size)


def peak_memory_over_ranks(fabric: Fabric) -> int | None:
    """Return the peak memory of any rank in bytes, on its GPU or else in RAM; None if unknown."""
    cuda = fabric.device.type == "cuda"
    local = torch.cuda.max_memory_allocated(fabric.device) if cuda else resources.peak_memory_bytes()
    return None if local is None else int(all_gather_rows(torch.tensor([local]), fabric).max())


def release_memory(device: torch.device) -> None:
    """Return memory that no tensor uses to the GPU, also that of dropped CUDA graphs."""
    if device.type == "cuda":
        # A workspace allocated while a graph was captured would keep the graph's memory pool.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def all_ranks_or_raise(fabric: Fabric, fn: Callable[[], _T]) -> _T:
    """Run on every rank; if one raises, all raise its exception."""
    if fabric.world_size == 1:
        return fn()
    result: _T | None = None
    failure: Exception | None = None
    try:
        result = fn()
    except Exception as error:
        failure = _picklable(error)
    failed = (
        _all_gather(torch.tensor([failure is not None]).long(), fabric).flatten().nonzero().flatten().tolist()
    )
    if failed:
        exception = fabric.broadcast(failure, src=failed[0])
        assert isinstance(exception, Exception)
        raise exception
    return result  # type: ignore[return-value]


def on_rank_zero(fabric: Fabric, fn: Callable[[], _T]) -> _T:
    """Run on rank 0; broadcast the result or the exception."""
    if fabric.world_size == 1:
        return fn()
    outcome: tuple[_T | None, Exception | None] = (None, None)
    if fabric.is_global_zero:
        try:
            outcome = (fn(), None)
        except Exception as error:  # any: the other ranks wait for the outcome
            outcome = (None, _picklable(error))
    result, failure = fabric.broadcast(outcome)
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]


def _picklable(error: Exception) -> Exception:
    """Return an equivalent exception that can be pickled."""
    if isinstance(error, UserError | AwaitingLabels):
        return error
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror or str(error), error.filename)
    return RuntimeError("".join(traceback.format_exception(error)))
