"""Execute a sweep on a Ray cluster whose nodes share the output folder."""

from collections.abc import Sequence

from ducats.cluster import TaskLost, TaskPool, run_subcommand
from ducats.errors import UserError
from ducats.sweep.engines import End, Running


class OnRay:
    """Execute runs as tasks of the connected cluster.

    A run that is lost with its worker or node is restarted elsewhere and resumes from its last checkpoint.
    The cluster ends all runs when this process ends.

    Args:
        cpus: CPUs per run; None means half of a node's CPUs, divided by its GPUs.
        gpus: whether each run gets a GPU.
        most: maximum number of parallel runs; None means as many as fit into half of the CPUs.
    """

    pace = 0.5

    def __init__(self, *, cpus: float | None, gpus: bool, most: int | None) -> None:
        self._crew = TaskPool(run_subcommand, cpus_per_task=cpus, use_gpu=gpus, max_tasks=most)
        self._running: dict[str, Running] = {}

    def room(self) -> int:
        """Return the number of free slots of the cluster."""
        return self._crew.free_slots()

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Submit runs to the cluster."""
        self._running |= {run.name: run for run in runs}
        return [self._crew.submit(run.name, run.command, run.log, run.lock) for run in runs]

    def ended(self) -> list[End]:
        """Return the runs that ended, or were lost too often."""
        found = []
        for name, code, error in self._crew.wait(0):
            run, why = self._running.pop(name), ""
            if error is not None:
                plain = isinstance(error, UserError | TaskLost)
                why = (str(error) if plain else f"{type(error).__name__}: {error}").partition("\n")[0]
                code = 1
            elif code > 0 and not run.last_line():
                why = f"exit code {code} with an empty log; check that all nodes share {run.folder.parent}"
            found.append(End(run.name, code, why))
        return found

    def stop(self) -> str:
        """Stop all runs and their workers."""
        self._crew.stop()
        return ""
