"""One training step: eager PyTorch or, on a GPU, a CUDA graph per batch shape.

A ResNet-50 step is some thousands of small kernel launches, and at a batch size of 32 the GPU waits for the
host between them. A CUDA graph holds all launches of a step and replays them with one. Inputs that change
from step to step (images, labels, learning rates) are in buffers that the graph reads.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from ducats.objectives import AuxiliaryModule, Batch, CachedForward, LabelledImages, ObjectiveFn
from ducats.settings import TargetBatching
from ducats.training.sharding import is_sharded
from ducats.utils.errors import UserError
from ducats.utils.registry import defining_package

MAX_CUDA_GRAPHS = 8  # graphs in memory; newly acquired labels change the batch shape in every round
GRAPH_EVICTION_STEPS = 50  # a graph unused for this many steps may be dropped


@dataclass(frozen=True)
class CapturedStep:
    """A captured step and the buffers it reads and writes."""

    graph: Any  # torch.cuda.CUDAGraph
    batch: Batch
    losses: dict[str, Tensor]


class Step:
    """Forward, backward and optimiser update.

    Args:
        model: as set up by Fabric.
        optimiser: as set up by Fabric; its groups have a ``first_lr``, the learning rate at factor 1.
        use_cuda_graphs: capture steps as CUDA graphs and replay them. The first step of each shape runs
            eagerly, which keeps the number and order of steps unchanged.
        max_grad_norm: largest gradient norm over all network weights; None: no clipping.
        auxiliary_parameters: parameters of the auxiliary modules. Their gradients are clipped separately, and
            a step may leave them unused.
        target_batching: which streams pass through the network as one batch.
        source_is_target: whether the source images are labelled target images, and are batched as such.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        objective: ObjectiveFn,
        fabric: Fabric,
        *,
        use_cuda_graphs: bool = False,
        max_grad_norm: float | None = None,
        probes: Sequence[AuxiliaryModule] = (),
        auxiliary_parameters: Iterable[nn.Parameter] = (),
        target_batching: TargetBatching = "separate",
        source_is_target: bool = False,
    ) -> None:
        self.probes = probes
        self.join_streams = partial(TARGET_BATCHING[target_batching], source_is_target=source_is_target)
        self._auxiliary_parameters = [
            parameter for parameter in auxiliary_parameters if parameter.requires_grad
        ]
        self.model, self.optimiser, self.objective, self.fabric = model, optimiser, objective, fabric
        self.use_cuda_graphs, self.max_grad_norm = use_cuda_graphs, max_grad_norm
        self._last_used: dict[object, int] = {}  # batch shape -> step of its last use
        self._steps = 0
        self._captured: OrderedDict[object, CapturedStep] = OrderedDict()
        self._graph_memory_pool: Any = None  # shared by all graphs, which never replay concurrently
        # A graph reads from fixed addresses, so learning rates must be tensors on the device.
        self._lr_tensors = (
            [torch.zeros((), device=fabric.device) for _ in optimiser.param_groups] if use_cuda_graphs else []
        )

    def __call__(self, batch: Batch, lr_factor: float, source_weight: float = 1.0) -> dict[str, Tensor]:
        """Take a step; return the weighted losses, which are valid until the next step.

        Args:
            batch: this rank's share, on the device.
            lr_factor: factor of the learning rates.
            source_weight: factor of the losses named ``source/...``.
        """
        self._set_learning_rates(lr_factor)
        if not self.use_cuda_graphs:
            return self._run_eagerly(batch, source_weight)
        key = (_shape_key(batch), source_weight)
        # The first step of a shape runs eagerly: it selects kernels and allocates buffers.
        is_new_shape = key not in self._last_used
        self._steps += 1
        self._last_used[key] = self._steps
        if key in self._captured:
            self._captured.move_to_end(key)
            return self._replay(self._captured[key], batch)
        if is_new_shape or not self._evict_unused_graph():
            return self._run_eagerly(batch, source_weight)
        captured = self._capture(batch, source_weight)
        if captured is None:
            return self._run_eagerly(batch, source_weight)
        self._captured[key] = captured
        return self._replay(captured, batch)

    def _evict_unused_graph(self) -> bool:
        """Drop a graph that was long unused; return False if all are in use and capturing would thrash."""
        if len(self._captured) < MAX_CUDA_GRAPHS:
            return True
        oldest = next(iter(self._captured))
        if self._steps - self._last_used[oldest] < GRAPH_EVICTION_STEPS:
            return False
        del self._captured[oldest]
        return True

    def release_graphs(self) -> None:
        """Drop all captured graphs and their memory pool."""
        self._captured.clear()
        self._graph_memory_pool = None

    def restore_float_rates(self) -> None:
        """Convert the learning rates back to floats, as stored in a checkpoint."""
        for group in self.optimiser.param_groups:
            group["lr"] = float(group["lr"])

    def _set_learning_rates(self, lr_factor: float) -> None:
        for group_index, group in enumerate(self.optimiser.param_groups):
            if self.use_cuda_graphs:
                self._lr_tensors[group_index].fill_(group["first_lr"] * lr_factor)
                group["lr"] = self._lr_tensors[group_index]
            else:
                group["lr"] = group["first_lr"] * lr_factor

    def _run_eagerly(self, batch: Batch, source_weight: float) -> dict[str, Tensor]:
        forward = CachedForward(self.model, self.join_streams(batch))
        losses = self.objective(forward, batch)
        for probe in self.probes:
            losses = losses | probe.losses(forward, batch)
        if not losses:
            raise UserError("the objective has no loss to train on: all of its weights are zero")
        if source_weight != 1.0:
            losses = {
                name: source_weight * loss if name.startswith("source/") else loss
                for name, loss in losses.items()
            }
        self.optimiser.zero_grad()
        total = torch.stack(list(losses.values())).sum()
        if self.fabric.world_size > 1:  # DDP expects a gradient for every parameter
            total = total + 0.0 * sum(parameter.sum() for parameter in self._auxiliary_parameters)
        self.fabric.backward(total)
        if self.max_grad_norm is not None:
            self._clip_gradients(self.max_grad_norm)
        self.optimiser.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def _clip_gradients(self, max_norm: float) -> None:
        """Clip the gradients of the network and of the auxiliary modules, each by its own norm.

        Non-finite gradients are kept; `fit_epoch` then raises.
        """
        optimiser = getattr(self.optimiser, "optimizer", self.optimiser)  # unwrap Fabric's wrapper
        self.fabric.strategy.precision.unscale_gradients(optimiser)
        auxiliary_ids = set(map(id, self._auxiliary_parameters))
        network = [
            p for group in optimiser.param_groups for p in group["params"] if id(p) not in auxiliary_ids
        ]
        for parameters in (network, self._auxiliary_parameters):
            if parameters:
                nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=False)

    def _capture(self, batch: Batch, source_weight: float) -> CapturedStep | None:
        """Capture a step without running it; on failure, disable graphs and return None."""
        static_batch = _map_tensors(batch, torch.clone)
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()  # let gradients be allocated in the graph's memory
        try:
            # Restrict only this thread during capture: the prefetch worker keeps running and allocates pinned
            # memory.
            with torch.cuda.graph(graph, pool=self._graph_memory_pool, capture_error_mode="thread_local"):
                losses = self._run_eagerly(static_batch, source_weight)
        except RuntimeError as error:
            # A user's model or objective may synchronise with the device within a step.
            warnings.warn(
                f"the step cannot be captured as a CUDA graph ({' '.join(str(error).split())[:200]}) "
                "and runs eagerly, which is slower; --set engine.cuda_graphs=false silences this warning",
                stacklevel=2,
            )
            self.use_cuda_graphs = False
            self._captured.clear()
            self.optimiser.zero_grad()
            return None
        self._graph_memory_pool = graph.pool()
        return CapturedStep(graph, static_batch, losses)

    def _replay(self, captured: CapturedStep, batch: Batch) -> dict[str, Tensor]:
        for static, new in zip(_tensors(captured.batch), _tensors(batch), strict=True):
            static.copy_(new, non_blocking=True)
        captured.graph.replay()
        return captured.losses


def join_target(batch: Batch, *, source_is_target: bool = False) -> Sequence[Tensor]:
    """Join labelled and unlabelled target images (classification only)."""
    streams = (batch.source if source_is_target else None, batch.labelled, batch.pseudo_labelled)
    labelled = [part.images for part in streams if part is not None]
    if batch.unlabelled is None or not labelled or batch.source.labels.ndim > 1:
        return ()
    group = [batch.unlabelled, *labelled]
    return group if len({images.shape[1:] for images in group}) == 1 else ()


def join_target_if_few(batch: Batch, *, source_is_target: bool = False) -> Sequence[Tensor]:
    """Join target images if a labelled batch is smaller than half of the unlabelled one."""
    group = join_target(batch, source_is_target=source_is_target)
    # From half a batch on, batch statistics are reliable, and a separate pass of labelled images is better.
    return group if any(2 * len(images) < len(group[0]) for images in group[1:]) else ()


def keep_separate(batch: Batch, *, source_is_target: bool = False) -> Sequence[Tensor]:  # noqa: ARG001
    """Join nothing: each stream is a batch of its own, as published."""
    return ()


TARGET_BATCHING: Mapping[TargetBatching, Callable[..., Sequence[Tensor]]] = {
    "separate": keep_separate,
    "joint": join_target,
    "joint_if_few": join_target_if_few,
}


def can_capture_graphs(fabric: Fabric) -> bool:
    """Return whether steps can be captured: one CUDA device, and a precision without gradient scaling."""
    has_grad_scaler = getattr(fabric.strategy.precision, "scaler", None) is not None
    is_single_process = fabric.world_size == 1 and not is_sharded(fabric)
    return fabric.device.type == "cuda" and is_single_process and not has_grad_scaler


TRUSTED_PACKAGES = frozenset({"ducats", "timm", "torch", "torchvision"})


def is_trusted_code(objective: ObjectiveFn, network: nn.Module) -> bool:
    """Return whether all code of objective and network is from packages that keep no Python state in a step.

    A captured step would silently freeze a counter or a random choice in other code.
    """
    packages = {type(module).__module__.split(".")[0] for module in network.modules()}
    return packages <= TRUSTED_PACKAGES and defining_package(objective) in TRUSTED_PACKAGES


def _parts(batch: Batch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(batch)}


def _tensors(batch: Batch) -> Sequence[Tensor]:
    parts = (part if isinstance(part, LabelledImages) else (part,) for part in _parts(batch).values())
    return [tensor for part in parts for tensor in part if isinstance(tensor, Tensor)]


def _shape_key(batch: Batch) -> tuple[object, ...]:
    """Return the key of a captured step; label maps change dtype with the first class above 127."""

    def describe(part: object) -> object:
        if isinstance(part, LabelledImages):
            return (*part.images.shape, part.labels.dtype)
        return tuple(part.shape) if isinstance(part, Tensor) else part

    return tuple(map(describe, _parts(batch).values()))


def _map_tensors(batch: Batch, fn: Callable[[Tensor], Tensor]) -> Batch:
    def map_part(part: Any) -> Any:
        if isinstance(part, LabelledImages):
            return LabelledImages(*map(fn, part))
        return fn(part) if isinstance(part, Tensor) else part

    return Batch(**{name: map_part(part) for name, part in _parts(batch).items()})
