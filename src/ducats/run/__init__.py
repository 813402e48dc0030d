"""One run in its folder, from the beginning or from where it stopped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from ducats.engine.beside import recordable
from ducats.engine.processes import make_fabric, on_chief, precision_of
from ducats.engine.speed import Speed
from ducats.engine.step import familiar
from ducats.errors import UserError
from ducats.parts import Parts, Plan, check, describe, describe_data
from ducats.progress import Listener, silence
from ducats.run.keeping import check_shared
from ducats.run.story import Story, Wait
from ducats.rundir import RunDir

AS_FAST_AS_IT_GOES = Speed()


def run(
    parts: Parts,
    plan: Plan,
    folder: str | Path,
    *,
    fabric: Fabric | None = None,
    identity: Mapping[str, Any] | None = None,
    speed: Speed = AS_FAST_AS_IT_GOES,
    listen: Listener = silence,
    wait: Wait | None = None,
) -> RunDir:
    """Run the plan in a folder, or go on with it; return the folder.

    Args:
        parts: what to run. The model is copied: the caller's own keeps its weights.
        plan: when and how much.
        folder: the run's own; the same call on the same folder goes on after a kill or a pause.
        fabric: device, precision, processes; one process on the best device by default.
        identity: what the folder is checked against when the run goes on; plan and parts by default.
        speed: where images live and how steps run; whatever the device can do by default.
        listen: told of every step.
        wait: called by each process while people have to answer, with the round and what is open, or what is
            wrong with an answer; returns when it is time to look again. Without it the run ends there.

    Raises:
        UserError: bad input; says what to do.
        AwaitingLabels: people have to answer and nobody waits; call again when they have.
    """
    check(parts, plan)
    fabric = fabric or _launched()
    still = recordable(parts.training, parts.query)
    known = familiar(parts.training.loss, parts.model) and still
    if speed.graphs and not still:
        raise UserError(
            "engine.graphs=true does not go with this objective or query, which draw at random in each step: "
            "leave it out"
        )
    settled = speed.settle(fabric, familiar=known, pixels=parts.source.of_pixels)
    home = RunDir(Path(folder))
    identity = identity or {**describe(parts, plan), "precision": precision_of(fabric)}
    on_chief(fabric, lambda: home.claim(identity, describe_data(parts)))
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
