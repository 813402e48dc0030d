"""One training step: eager PyTorch or, on a GPU, a CUDA graph per batch shape.

A ResNet-50 step is some thousands of small kernel launches, and at a batch size of 32 the GPU waits for the
host between them. A CUDA graph holds all launches of a step and replays them with one. Inputs that change
from step to step (images, labels, learning rates) are in buffers that the graph reads.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD

from ducats.engine.sharding import is_sharded
from ducats.errors import UserError
from ducats.objectives import AuxiliaryModule, Batch, CachedForward, LabelledImages, ObjectiveFn

MOST = 8  # graphs in memory; newly acquired labels change the batch shape in every round
LONG = 50  # a graph unused for this many steps may be dropped


@dataclass(frozen=True)
class Recorded:
    """A captured step and the buffers it reads and writes."""

    graph: Any  # torch.cuda.CUDAGraph
    batch: Batch
    losses: dict[str, Tensor]


class Step:
    """Forward, backward and optimiser update.

    Args:
        model: as set up by Fabric.
        optimiser: as set up by Fabric; its groups have a ``first_lr``.
        graphs: capture steps as CUDA graphs and replay them. The first step of each shape runs eagerly, which
            keeps the number and order of steps unchanged.
        clip: largest gradient norm over all network weights; None: no clipping.
        beside: probes, trained in the same step.
        loose: parameters of the auxiliary modules. Their gradients are clipped separately, and a step may
            leave them unused.
        together: which streams pass through the network as one batch, a name from ``TOGETHER``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: SGD,
        objective: ObjectiveFn,
        fabric: Fabric,
        *,
        graphs: bool = False,
        clip: float | None = None,
        beside: Sequence[AuxiliaryModule] = (),
        loose: Iterable[nn.Parameter] = (),
        together: str = "separate",
    ) -> None:
        self.beside, self.together = beside, TOGETHER[together]
        self._loose = [parameter for parameter in loose if parameter.requires_grad]
        self.model, self.optimiser, self.objective, self.fabric = model, optimiser, objective, fabric
        self.graphs, self.clip = graphs, clip
        self._met: dict[object, int] = {}  # batch shape -> step of its last use
        self._steps = 0
        self._recorded: OrderedDict[object, Recorded] = OrderedDict()
        self._pool: Any = None  # memory pool shared by all graphs, which never replay concurrently
        # A graph reads from fixed addresses, so learning rates must be tensors on the device.
        self._rates = (
            [torch.zeros((), device=fabric.device) for _ in optimiser.param_groups] if graphs else []
        )

    def __call__(self, batch: Batch, rate: float, source_weight: float = 1.0) -> dict[str, Tensor]:
        """Take a step; return the weighted losses, which are valid until the next step.

        Args:
            batch: this rank's share, on the device.
            rate: factor of the learning rates.
            source_weight: factor of the losses named ``source/...``.
        """
        self._set_rates(rate)
        if not self.graphs:
            return self._plain(batch, source_weight)
        key = (_shapes(batch), source_weight)
        new = key not in self._met  # kernels are selected and buffers allocated outside any graph
        self._steps += 1
        self._met[key] = self._steps
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return self._replay(self._recorded[key], batch)
        if new or not self._make_room():
            return self._plain(batch, source_weight)
        recorded = self._record(batch, source_weight)
        if recorded is None:
            return self._plain(batch, source_weight)
        self._recorded[key] = recorded
        return self._replay(recorded, batch)

    def _make_room(self) -> bool:
        """Drop a graph that was long unused; return False if all are in use and capturing would thrash."""
        if len(self._recorded) < MOST:
            return True
        oldest = next(iter(self._recorded))
        if self._steps - self._met[oldest] < LONG:
            return False
        del self._recorded[oldest]
        return True

    def release(self) -> None:
        """Convert the learning rates back to floats, as stored in a checkpoint."""
        for group in self.optimiser.param_groups:
            group["lr"] = float(group["lr"])

    def _set_rates(self, rate: float) -> None:
        for number, group in enumerate(self.optimiser.param_groups):
            if self.graphs:
                self._rates[number].fill_(group["first_lr"] * rate)
                group["lr"] = self._rates[number]
            else:
                group["lr"] = group["first_lr"] * rate

    def _plain(self, batch: Batch, source_weight: float) -> dict[str, Tensor]:
        remembered = CachedForward(self.model, self.together(batch))
        losses = self.objective(remembered, batch)
        for witness in self.beside:
            losses = losses | witness.losses(remembered, batch)
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
            total = total + 0.0 * sum(parameter.sum() for parameter in self._loose)
        self.fabric.backward(total)
        if self.clip is not None:
            self._shorten(self.clip)
        self.optimiser.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def _shorten(self, longest: float) -> None:
        """Clip the gradients of the network and of the auxiliary modules, each by its own norm.

        Non-finite gradients are kept; `fit_epoch` then raises.
        """
        optimiser = getattr(self.optimiser, "optimizer", self.optimiser)  # unwrap Fabric's wrapper
        self.fabric.strategy.precision.unscale_gradients(optimiser)
        apart = set(map(id, self._loose))
        network = [p for group in optimiser.param_groups for p in group["params"] if id(p) not in apart]
        for parameters in (network, self._loose):
            if parameters:
                nn.utils.clip_grad_norm_(parameters, longest, error_if_nonfinite=False)

    def _record(self, batch: Batch, source_weight: float) -> Recorded | None:
        """Capture a step without running it; on failure, disable graphs and return None."""
        still = _each(batch, torch.clone)
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()  # let gradients be allocated in the graph's memory
        try:
            # Restrict only this thread during capture: the prefetch worker keeps running and allocates pinned
            # memory.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                losses = self._plain(still, source_weight)
        except RuntimeError as error:
            # A user's model or objective may synchronise with the device within a step.
            warnings.warn(
                f"the step cannot be captured as a CUDA graph ({' '.join(str(error).split())[:200]}) "
                "and runs eagerly, which is slower; --set engine.cuda_graphs=false silences this warning",
                stacklevel=2,
            )
            self.graphs = False
            self._recorded.clear()
            self.optimiser.zero_grad()
            return None
        self._pool = graph.pool()
        return Recorded(graph, still, losses)

    def _replay(self, recorded: Recorded, batch: Batch) -> dict[str, Tensor]:
        for still, new in zip(_tensors(recorded.batch), _tensors(batch), strict=True):
            still.copy_(new, non_blocking=True)
        recorded.graph.replay()
        return recorded.losses


def target_together(batch: Batch) -> Sequence[Tensor]:
    """Join labelled and unlabelled target images (classification only)."""
    known = [part.images for part in (batch.labelled, batch.pseudo_labelled) if part is not None]
    if batch.unlabelled is None or not known or batch.source.labels.ndim > 1:
        return ()
    group = [batch.unlabelled, *known]
    return group if len({images.shape[1:] for images in group}) == 1 else ()


def few_together(batch: Batch) -> Sequence[Tensor]:
    """Join target images if a labelled batch is smaller than half of the unlabelled one."""
    group = target_together(batch)
    # From half a batch on, batch statistics are reliable, and a separate pass of labelled images is better.
    return group if any(2 * len(images) < len(group[0]) for images in group[1:]) else ()


def none_together(batch: Batch) -> Sequence[Tensor]:  # noqa: ARG001 - common signature
    """Join nothing: each stream is a batch of its own, as published."""
    return ()


TOGETHER: Mapping[str, Callable[[Batch], Sequence[Tensor]]] = {
    "separate": none_together,
    "joint": target_together,
    "joint_if_few": few_together,
}


def can_record(fabric: Fabric) -> bool:
    """Return whether steps can be captured: one CUDA device, and a precision without gradient scaling."""
    scaled = getattr(fabric.strategy.precision, "scaler", None) is not None
    alone = fabric.world_size == 1 and not is_sharded(fabric)
    return fabric.device.type == "cuda" and alone and not scaled


FAMILIAR = ("ducats", "timm", "torch", "torchvision")


def familiar(objective: ObjectiveFn, network: nn.Module) -> bool:
    """Return whether all code of objective and network is from packages that keep no Python state in a step.

    A captured step would silently freeze a counter or a random choice in other code.
    """
    while isinstance(objective, partial):
        objective = objective.func
    # The module of the code itself: `functools.wraps` copies `__module__` from the wrapped function.
    home = getattr(objective, "__globals__", {}).get("__name__", type(objective).__module__)
    homes = {home, *(type(module).__module__ for module in network.modules())}
    return all(home.split(".")[0] in FAMILIAR for home in homes)


def _tensors(batch: Batch) -> Sequence[Tensor]:
    known = (batch.labelled, batch.target, batch.pseudo_labelled)
    flat = [tensor for part in known if part is not None for tensor in part]
    return [t for t in (*batch.source, *flat, batch.unlabelled, batch.strong) if t is not None]


def _shapes(batch: Batch) -> tuple[object, ...]:
    """Return the key of a captured step; label maps change dtype with the first class above 127."""

    def kind(part: Tensor | LabelledImages | None) -> object:
        if part is None:
            return None
        return tuple(part.shape) if isinstance(part, Tensor) else (*part.images.shape, part.labels.dtype)

    parts = (
        batch.source,
        batch.labelled,
        batch.unlabelled,
        batch.target,
        batch.strong,
        batch.pseudo_labelled,
    )
    return (*map(kind, parts), batch.has_target_labels)


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    def both(known: LabelledImages | None) -> LabelledImages | None:
        return None if known is None else LabelledImages(*map(change, known))

    return Batch(
        source=LabelledImages(*map(change, batch.source)),
        labelled=both(batch.labelled),
        unlabelled=None if batch.unlabelled is None else change(batch.unlabelled),
        target=both(batch.target),
        strong=None if batch.strong is None else change(batch.strong),
        pseudo_labelled=both(batch.pseudo_labelled),
        has_target_labels=batch.has_target_labels,
    )
