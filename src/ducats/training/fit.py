"""Optimiser and training epoch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from timm.optim import (  # type: ignore[attr-defined] # not marked as exported
    create_optimizer_v2,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import Tensor, nn
from torch.optim import Optimizer

from ducats.objectives import Batch
from ducats.settings import Optimisation
from ducats.training.distributed import all_reduce_sum, average_buffers
from ducats.training.schedules import LRSchedule
from ducats.training.step import Step
from ducats.utils.errors import UserError


def make_optimiser(
    network: nn.Module,
    settings: Optimisation,
    *,
    fused: bool = False,
    capturable: bool = False,
    auxiliaries: nn.Module | None = None,
) -> Optimizer:
    """Build the optimiser with one parameter group per learning-rate factor and weight decay.

    The first matching prefix wins; other parameters have factor 1. Without multipliers, those in the
    network's ``lr_multipliers`` attribute are used, if it has one.

    Args:
        fused: update each group with one kernel.
        capturable: allow steps to be captured as CUDA graphs; needs ``fused``.
        auxiliaries: auxiliary modules, trained at the full rate.
    """
    multipliers = settings.lr_multipliers
    if multipliers is None:
        multipliers = getattr(network, "lr_multipliers", {})
    layer_scales = {} if settings.layer_decay is None else _layer_scales(network, settings.layer_decay)
    undecayed = _undecayed(network) if settings.optimiser == "adamw" else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    used = set()
    for name, parameter in network.named_parameters():
        prefix = next((p for p in multipliers if name == p or name.startswith(f"{p}.")), None)
        used.add(prefix)
        if not parameter.requires_grad:
            continue
        factor = multipliers.get(prefix or "", 1.0) * layer_scales.get(id(parameter), 1.0)
        weight_decay = 0.0 if id(parameter) in undecayed else settings.weight_decay
        groups.setdefault((factor, weight_decay), []).append(parameter)
    if auxiliaries is not None and (
        auxiliary_parameters := [p for p in auxiliaries.parameters() if p.requires_grad]
    ):
        groups.setdefault((1.0, settings.weight_decay), []).extend(auxiliary_parameters)
    unused = multipliers.keys() - used
    if unused:
        top_level_names = sorted({name.split(".")[0] for name, _ in network.named_parameters()})
        raise UserError(
            f"train.lr_multipliers has unknown prefixes {sorted(unused)}; the model has {top_level_names}"
        )
    options: dict[str, Any] = {"capturable": capturable}
    if settings.optimiser == "sgd":
        options = {
            "momentum": settings.momentum,
            "nesterov": settings.nesterov and settings.momentum > 0,
        }
    return create_optimizer_v2(
        [
            {"params": parameters, "first_lr": factor * settings.lr, "weight_decay": weight_decay}
            for (factor, weight_decay), parameters in groups.items()
        ],
        opt=settings.optimiser,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        fused=fused,
        **options,
    )


def _layer_scales(network: nn.Module, layer_decay: float) -> dict[int, float]:
    """Return the learning-rate factor of each backbone parameter by its id; the last layer has factor 1."""
    trunk = next((module for module in network.modules() if hasattr(module, "group_matcher")), None)
    if trunk is None:
        raise unknown_layers_error()
    groups = param_groups_layer_decay(trunk, layer_decay=layer_decay)
    return {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}


def unknown_layers_error() -> UserError:
    """Return the error of a network whose layers timm does not know."""
    return UserError(
        "train.layer_decay needs a timm backbone whose layers are known, as in model.name=timm; set it to "
        "null for this model"
    )


def _undecayed(network: nn.Module) -> set[int]:
    """Return the ids of parameters without weight decay: biases, norms, and those that timm names."""
    groups = param_groups_weight_decay(network, 1.0)
    for module in network.modules():
        if callable(named := getattr(module, "no_weight_decay", None)):
            groups += param_groups_weight_decay(module, 1.0, no_weight_decay_list=named())
    return {id(parameter) for group in groups if not group["weight_decay"] for parameter in group["params"]}


def adapt_optimiser_state(optimiser: Optimizer, *, fused: bool, capturable: bool = False) -> None:
    """Adapt a loaded state to this process: a run may resume with other performance settings."""
    for group in optimiser.param_groups:
        group["fused"] = fused
        if "capturable" in group:
            group["capturable"] = capturable
        for parameter in group["params"]:
            state = optimiser.state[parameter]
            for name, value in state.items():
                if name == "step":  # of AdamW: a fused kernel reads it on the device
                    state[name] = value.to(parameter.device if fused else "cpu")
                elif isinstance(value, Tensor) and value.stride() != parameter.stride():
                    state[name] = torch.empty_like(parameter).copy_(value)


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


def _check_finite(losses: Mapping[str, float], optimiser: Optimizer) -> None:
    non_finite = [name for name, value in losses.items() if not abs(value) < float("inf")]
    if non_finite:
        raise UserError(
            f"{non_finite[0]!r} became {losses[non_finite[0]]} at learning rate "
            f"{optimiser.param_groups[0]['lr']:.2g}. Lower train.lr or set model.evidence=exp_clamped, and "
            "start a new run in a new folder; the acquired labels stay in this one"
        )
