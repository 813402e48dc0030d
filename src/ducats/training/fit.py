"""Optimiser and training epoch."""

from collections.abc import Callable, Iterable, Mapping

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD

from ducats.objectives import Batch
from ducats.settings import Optimisation
from ducats.training.distributed import all_reduce_sum, average_buffers
from ducats.training.schedules import LRSchedule
from ducats.training.step import Step
from ducats.utils.errors import UserError


def make_optimiser(
    network: nn.Module, settings: Optimisation, *, fused: bool = False, auxiliaries: nn.Module | None = None
) -> SGD:
    """Build SGD with one parameter group per learning-rate factor.

    The first matching prefix wins; other parameters have factor 1. Without multipliers, those in the
    network's ``lr_multipliers`` attribute are used, if it has one.

    Args:
        fused: update each group with one kernel.
        auxiliaries: auxiliary modules, trained at the full rate.
    """
    multipliers = settings.lr_multipliers
    if multipliers is None:
        multipliers = getattr(network, "lr_multipliers", {})
    groups: dict[float, list[nn.Parameter]] = {}
    used = set()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        prefix = next((p for p in multipliers if name == p or name.startswith(f"{p}.")), None)
        used.add(prefix)
        groups.setdefault(multipliers.get(prefix or "", 1.0), []).append(parameter)
    if auxiliaries is not None and (
        auxiliary_parameters := [p for p in auxiliaries.parameters() if p.requires_grad]
    ):
        groups.setdefault(1.0, []).extend(auxiliary_parameters)
    unused = multipliers.keys() - used
    if unused:
        top_level_names = sorted({name.split(".")[0] for name, _ in network.named_parameters()})
        raise UserError(
            f"train.lr_multipliers has unknown prefixes {sorted(unused)}; the model has {top_level_names}"
        )
    return SGD(
        [{"params": parameters, "first_lr": factor * settings.lr} for factor, parameters in groups.items()],
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        weight_decay=settings.weight_decay,
        fused=fused,
    )


def adapt_optimiser_state(optimiser: SGD, *, fused: bool) -> None:
    """Adapt a loaded state to this process: a run may resume with other performance settings."""
    for group in optimiser.param_groups:
        group["fused"] = fused
        for parameter in group["params"]:
            momentum = optimiser.state[parameter].get("momentum_buffer")
            if momentum is not None and momentum.stride() != parameter.stride():
                optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


def fit_epoch(
    step: Step,
    batches: Iterable[Batch],
    schedule: LRSchedule,
    *,
    first_step: int,
    fabric: Fabric,
    source_weight: float = 1.0,
    on_step: Callable[[int, Callable[[], dict[str, float]]], None],
) -> dict[str, float]:
    """Train on an epoch's batches; return the mean of each loss.

    Args:
        batches: this rank's share.
        first_step: number of steps before this epoch.
        on_step: called with the number of steps done and a function that returns the mean losses (which
            synchronises with the device).
    """
    model, optimiser = step.model, step.optimiser
    model.train()
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def means() -> dict[str, float]:
        return {name: float(total) / counts[name] for name, total in sums.items()}

    for step_number, batch in enumerate(batches, start=first_step):
        losses = step(batch, schedule(step_number), source_weight)
        for name, loss in losses.items():
            sums[name] = sums[name] + loss if name in sums else loss.clone()
            counts[name] = counts.get(name, 0) + 1
        on_step(step_number + 1, means)
    step.restore_float_rates()
    average_buffers(model, fabric)
    sums = {name: all_reduce_sum(total, fabric) / fabric.world_size for name, total in sums.items()}
    result = means()
    # The last step may have left non-finite weights while all losses are finite.
    is_finite = bool(torch.stack([parameter.isfinite().all() for parameter in model.parameters()]).all())
    _check_finite(result if is_finite else {"weights": float("nan")}, optimiser)
    return result


def _check_finite(losses: Mapping[str, float], optimiser: SGD) -> None:
    non_finite = [name for name, value in losses.items() if not abs(value) < float("inf")]
    if non_finite:
        raise UserError(
            f"{non_finite[0]!r} became {losses[non_finite[0]]} at learning rate "
            f"{optimiser.param_groups[0]['lr']:.2g}. Lower train.lr or set model.evidence=exp_clamped, and "
            "start a new run in a new folder; the acquired labels stay in this one"
        )
