"""Run active domain adaptation in a run folder, and resume it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from ducats.errors import UserError
from ducats.parts import Parts, Plan, check, describe, describe_data
from ducats.progress import Listener, silence
from ducats.run.keeping import check_shared
from ducats.run.story import Story, Wait
from ducats.rundir import RunDir
from ducats.training.auxiliary import cuda_graph_safe
from ducats.training.distributed import make_fabric, on_rank_zero, precision_name
from ducats.training.performance import PerformanceOptions
from ducats.training.step import is_trusted_code

AS_FAST_AS_IT_GOES = PerformanceOptions()


def run(
    parts: Parts,
    plan: Plan,
    folder: str | Path,
    *,
    fabric: Fabric | None = None,
    identity: Mapping[str, Any] | None = None,
    speed: PerformanceOptions = AS_FAST_AS_IT_GOES,
    listen: Listener = silence,
    wait: Wait | None = None,
) -> RunDir:
    """Run the plan in a run folder, or resume it; return the run folder.

    Args:
        parts: the components. The model is copied, so the caller's model keeps its weights.
        plan: epochs, rounds, budget and training settings.
        folder: one folder per run. Make the same call with the same folder to resume after a kill or a pause.
        fabric: device, precision and processes; by default one process on the best device.
        identity: compared with the identity stored in the folder on resume; by default derived from
            components and plan.
        speed: data placement and execution options; by default chosen for the device.
        listen: called on every event.
        wait: called by each process while annotators still have to answer, with the round and the exception
            that reports the open questions or an invalid answer. The answers are checked again when it
            returns. Without it the run stops there.

    Raises:
        UserError: invalid input.
        AwaitingLabels: annotators have to answer and ``wait`` is None; call again when they have.
    """
    check(parts, plan)
    fabric = fabric or _launched()
    still = cuda_graph_safe(parts.training, parts.query)
    known = is_trusted_code(parts.training.fn, parts.model) and still
    if speed.cuda_graphs and not still:
        raise UserError(
            "engine.cuda_graphs=true does not work with this objective or query, which uses random numbers in "
            "each step: remove the setting"
        )
    settled = speed.resolve(fabric, trusted_code=known, per_pixel=parts.source.of_pixels)
    home = RunDir(Path(folder))
    identity = identity or {**describe(parts, plan), "precision": precision_name(fabric)}
    on_rank_zero(fabric, lambda: home.claim(identity, describe_data(parts)))
    check_shared(home, fabric)
    if home.finished:
        home.release()
        return home
    try:
        Story(parts, plan, home, fabric, settled, listen, wait).tell()
    finally:
        home.release()
    return home


def _launched() -> Fabric:
    fabric = make_fabric()
    fabric.launch()
    return fabric
