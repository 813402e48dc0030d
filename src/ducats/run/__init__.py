"""Run active domain adaptation in a run folder, and resume it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from ducats.models.backbone import uses_gradient_checkpointing
from ducats.run.checkpoint import check_shared_folder
from ducats.run.checks import check_cuda_graphs, check_run
from ducats.run.components import Components, RunPlan, run_identity, summarise_data, unreadable_files
from ducats.run.context import ClassesAdded, WaitCallback, open_context
from ducats.run.default_method import with_default_method
from ducats.run.loop import run_loop
from ducats.runfolder.run_folder import RunFolder, settings_differences
from ducats.settings import PerformanceOptions
from ducats.training.distributed import (
    all_ranks_or_raise,
    make_fabric,
    on_rank_zero,
    precision_name,
    release_memory,
)
from ducats.training.performance import resolve_performance
from ducats.training.step import is_trusted_code
from ducats.utils.errors import AwaitingLabels, UserError
from ducats.utils.progress import EventListener, activity, no_op

_DEFAULT_PERFORMANCE = PerformanceOptions()


def run(
    components: Components,
    plan: RunPlan,
    folder: str | Path,
    *,
    fabric: Fabric | None = None,
    identity: Mapping[str, Any] | None = None,
    performance: PerformanceOptions = _DEFAULT_PERFORMANCE,
    on_event: EventListener = no_op,
    wait: WaitCallback | None = None,
) -> RunFolder:
    """Run the plan in a run folder, or resume it; return the run folder.

    The arguments are those of `ducats.adapt`, which also shows progress.
    """
    components, plan = with_default_method(components, plan)
    check_run(components, plan)
    fabric = fabric or _launch_default_fabric()
    objective = components.objective_spec
    check_cuda_graphs(performance.cuda_graphs, objective)
    is_trusted = (
        is_trusted_code(objective.fn, components.model)
        and objective.cuda_graph_safe
        and not uses_gradient_checkpointing(components.model)  # restores random states within a step
    )
    resolved_performance = resolve_performance(
        performance, fabric, trusted_code=is_trusted, per_pixel=components.source.per_pixel
    )
    run_folder = RunFolder(Path(folder))
    identity = identity or {**run_identity(components, plan), "precision": precision_name(fabric)}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    data_summary = summarise_data(components)
    _check_same_data(data_summary, fabric)
    on_rank_zero(fabric, lambda: run_folder.claim(identity, data_summary, device=device))
    check_shared_folder(run_folder, fabric)
    if run_folder.finished:
        run_folder.release()
        return run_folder
    try:
        on_rank_zero(fabric, lambda: run_folder.save_unreadable(unreadable_files(components)))
        _open_and_run(components, plan, run_folder, fabric, resolved_performance, on_event, wait)
    except AwaitingLabels as pause:
        raise pause.with_traceback(None)  # noqa: B904 - a pause; its frames would keep the model in memory
    finally:
        release_memory(fabric.device)
        run_folder.release()
    return run_folder


def _check_same_data(data_summary: Mapping[str, Any], fabric: Fabric) -> None:
    """Raise in all processes if one has read other images, e.g. because it could not read a file."""
    expected = on_rank_zero(fabric, lambda: data_summary)

    def compare() -> None:
        if data_summary != expected:
            changed = "; ".join(settings_differences(expected, data_summary))
            raise UserError(
                f"process {fabric.global_rank} has read other data than process 0 ({changed}); check that "
                "all files are readable on every machine, and run the same command again"
            )

    all_ranks_or_raise(fabric, compare)


def _open_and_run(*context_arguments: Any) -> None:
    is_done = False
    while not is_done:
        with activity("preparing the training"):
            context = open_context(*context_arguments)
        try:
            run_loop(context)
            is_done = True
        except ClassesAdded:
            pass  # resume from the checkpoint before the round that added them
        finally:
            context.close()


def _launch_default_fabric() -> Fabric:
    fabric = make_fabric()
    fabric.launch()
    return fabric
