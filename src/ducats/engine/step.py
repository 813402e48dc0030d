"""One optimisation step: as plain PyTorch, or, on a GPU, recorded once for each shape of batch and replayed.

A step of a ResNet-50 is some thousands of small launches, and at batches of 32 the GPU waits for the host
between them. A CUDA graph holds all launches of a step; to replay it is one. What changes from step to step
(images, labels, learning rates) lies in buffers that the graph reads.
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
from ducats.objectives import Batch, Companion, Labelled, Objective, Remembered

MOST = 8  # graphs kept at a time; bought labels change the shape of a batch with every question
LONG = 50  # steps without use after which a graph may go


@dataclass(frozen=True)
class Recorded:
    """A captured step with the buffers that it reads and writes."""

    graph: Any  # torch.cuda.CUDAGraph
    batch: Batch
    losses: dict[str, Tensor]


class Step:
    """Forward, backward, update.

    Args:
        model: as Fabric set it up.
        optimiser: likewise; its groups have a ``first_lr``.
        objective: names and computes the losses.
        fabric: device, precision, processes.
        graphs: record and replay. The first step of each shape runs plainly, so nothing is run that would
            not have been run, and in the same order.
        clip: longest gradient, as the norm over all weights; a longer one is shortened. None: as it is.
        beside: witnesses, which learn in the same step.
        loose: what learns beside the network: its gradients are shortened by themselves, and a step may leave
            them out.
        together: which streams of images pass through the network as one batch, a name from ``TOGETHER``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: SGD,
        objective: Objective,
        fabric: Fabric,
        *,
        graphs: bool = False,
        clip: float | None = None,
        beside: Sequence[Companion] = (),
        loose: Iterable[nn.Parameter] = (),
        together: str = "apart",
    ) -> None:
        self.beside, self.together = beside, TOGETHER[together]
        self._loose = [parameter for parameter in loose if parameter.requires_grad]
        self.model, self.optimiser, self.objective, self.fabric = model, optimiser, objective, fabric
        self.graphs, self.clip = graphs, clip
        self._met: dict[object, int] = {}  # shapes, and the step that saw them last
        self._steps = 0
        self._recorded: OrderedDict[object, Recorded] = OrderedDict()
        self._pool: Any = None  # memory that all graphs share: they are never replayed side by side
        # A graph holds addresses, not numbers: learning rates that change must lie on the device.
        self._rates = (
            [torch.zeros((), device=fabric.device) for _ in optimiser.param_groups] if graphs else []
        )

    def __call__(self, batch: Batch, rate: float, source_weight: float = 1.0) -> dict[str, Tensor]:
        """Take a step; the losses are weighted, and valid until the next step.

        Args:
            batch: this process's share, on the device.
            rate: factor of the learning rates.
            source_weight: factor of the losses named ``source/...``.
        """
        self._set_rates(rate)
        if not self.graphs:
            return self._plain(batch, source_weight)
        key = (_shapes(batch), source_weight)
        new = key not in self._met  # kernels are chosen and buffers made outside of any graph
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
        """Drop a graph that was not used for long; False if all are in use, and recording would thrash."""
        if len(self._recorded) < MOST:
            return True
        oldest = next(iter(self._recorded))
        if self._steps - self._met[oldest] < LONG:
            return False
        del self._recorded[oldest]
        return True

    def release(self) -> None:
        """Give learning rates back as numbers, as a checkpoint holds them."""
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
        remembered = Remembered(self.model, self.together(batch))
        losses = self.objective(remembered, batch)
        for witness in self.beside:
            losses = losses | witness.losses(remembered, batch)
        if not losses:
            raise UserError("the objective has no term left to train on: every weight is zero")
        if source_weight != 1.0:
            losses = {
                name: source_weight * loss if name.startswith("source/") else loss
                for name, loss in losses.items()
            }
        self.optimiser.zero_grad()
        total = torch.stack(list(losses.values())).sum()
        if self.fabric.world_size > 1:  # processes that exchange gradients wait for each
            total = total + 0.0 * sum(parameter.sum() for parameter in self._loose)
        self.fabric.backward(total)
        if self.clip is not None:
            self._shorten(self.clip)
        self.optimiser.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def _shorten(self, longest: float) -> None:
        """Shorten the network's gradient, and that of what learns beside it, each if it is too long.

        What is not finite stays so, and ends the run with a sentence: see `fit_epoch`.
        """
        optimiser = getattr(self.optimiser, "optimizer", self.optimiser)  # Fabric's wrapper has it inside
        self.fabric.strategy.precision.unscale_gradients(optimiser)
        apart = set(map(id, self._loose))
        network = [p for group in optimiser.param_groups for p in group["params"] if id(p) not in apart]
        for parameters in (network, self._loose):
            if parameters:
                nn.utils.clip_grad_norm_(parameters, longest, error_if_nonfinite=False)

    def _record(self, batch: Batch, source_weight: float) -> Recorded | None:
        """Capture a step, which does not run it; None, and never again, if it cannot be captured."""
        still = _each(batch, torch.clone)
        graph = torch.cuda.CUDAGraph()
        self.optimiser.zero_grad()  # gradients are to be made in the graph's own memory
        try:
            # Only this thread's calls are refused while it records: the worker that reads images ahead of
            # time goes on, and needs page-locked memory.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                losses = self._plain(still, source_weight)
        except RuntimeError as error:
            # A model or objective of the user's that asks the device something in the middle of a step.
            warnings.warn(
                f"a step cannot be recorded ({' '.join(str(error).split())[:200]}): it runs as plain "
                "PyTorch, which is slower; --set engine.graphs=false says so from the start",
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
    """The target's images, with a label and without, where images have labels."""
    known = [part.images for part in (batch.labelled, batch.certain) if part is not None]
    if batch.unlabelled is None or not known or batch.source.labels.ndim > 1:
        return ()
    group = [batch.unlabelled, *known]
    return group if len({images.shape[1:] for images in group}) == 1 else ()


def few_together(batch: Batch) -> Sequence[Tensor]:
    """The target's images while those with a label are fewer than half of those without."""
    group = target_together(batch)
    # Of half a batch and more, the statistics are sound, and images with labels are best by themselves.
    return group if any(2 * len(images) < len(group[0]) for images in group[1:]) else ()


def none_together(batch: Batch) -> Sequence[Tensor]:  # noqa: ARG001 - one of several
    """Each stream by itself, as published."""
    return ()


TOGETHER: Mapping[str, Callable[[Batch], Sequence[Tensor]]] = {
    "apart": none_together,
    "target": target_together,
    "few": few_together,
}


def can_record(fabric: Fabric) -> bool:
    """Whether steps can be recorded here: one CUDA device, and a precision whose step asks it nothing."""
    scaled = getattr(fabric.strategy.precision, "scaler", None) is not None
    alone = fabric.world_size == 1 and not is_sharded(fabric)
    return fabric.device.type == "cuda" and alone and not scaled


FAMILIAR = ("ducats", "timm", "torch", "torchvision")


def familiar(objective: Objective, network: nn.Module) -> bool:
    """Whether objective and network are of these libraries, which keep no state in Python during a step.

    A counter or a coin toss in somebody's own code would be frozen in a recorded step, and nobody told.
    """
    while isinstance(objective, partial):
        objective = objective.func
    # Where its code is, not what it calls itself: a wrapper takes the name of what it wraps.
    home = getattr(objective, "__globals__", {}).get("__name__", type(objective).__module__)
    homes = {home, *(type(module).__module__ for module in network.modules())}
    return all(home.split(".")[0] in FAMILIAR for home in homes)


def _tensors(batch: Batch) -> Sequence[Tensor]:
    known = (batch.labelled, batch.target, batch.certain)
    flat = [tensor for part in known if part is not None for tensor in part]
    return [t for t in (*batch.source, *flat, batch.unlabelled, batch.strong) if t is not None]


def _shapes(batch: Batch) -> tuple[object, ...]:
    """What a recorded step's buffers can take; label maps are wider once a class beyond 127 was bought."""

    def kind(part: Tensor | Labelled | None) -> object:
        if part is None:
            return None
        return tuple(part.shape) if isinstance(part, Tensor) else (*part.images.shape, part.labels.dtype)

    parts = (batch.source, batch.labelled, batch.unlabelled, batch.target, batch.strong, batch.certain)
    return (*map(kind, parts), batch.bought)


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    def both(known: Labelled | None) -> Labelled | None:
        return None if known is None else Labelled(*map(change, known))

    return Batch(
        source=Labelled(*map(change, batch.source)),
        labelled=both(batch.labelled),
        unlabelled=None if batch.unlabelled is None else change(batch.unlabelled),
        target=both(batch.target),
        strong=None if batch.strong is None else change(batch.strong),
        certain=both(batch.certain),
        bought=batch.bought,
    )
