"""Runs of a sweep on a Ray cluster whose nodes share the sweep's folder."""

from collections.abc import Sequence

from ducats.cluster import Crew, Lost, run_errand
from ducats.errors import UserError
from ducats.sweep.engines import End, Running


class OnRay:
    """Runs as tasks of the cluster that this process is connected to.

    A run that is lost with its worker or its node begins again elsewhere, and goes on from its last
    checkpoint. The cluster ends all of them when this process ends.

    Args:
        cpus: of each run; None: an even share of half a node for each of its GPUs.
        gpus: whether each run has a GPU.
        most: runs at a time; None: as many as half of the CPUs hold.
    """

    pace = 0.5

    def __init__(self, *, cpus: float | None, gpus: bool, most: int | None) -> None:
        self._crew = Crew(run_errand, cpus=cpus, gpus=gpus, most=most)
        self._running: dict[str, Running] = {}

    def room(self) -> int:
        """As many as there are places."""
        return self._crew.room()

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Hand runs to nodes."""
        self._running |= {run.name: run for run in runs}
        return [self._crew.begin(run.name, run.command, run.log, run.lock) for run in runs]

    def ended(self) -> list[End]:
        """Those that a worker saw the end of, and those that were lost too often."""
        found = []
        for name, code, error in self._crew.wait(0):
            run, why = self._running.pop(name), ""
            if error is not None:
                plain = isinstance(error, UserError | Lost)
                why = (str(error) if plain else f"{type(error).__name__}: {error}").partition("\n")[0]
                code = 1
            elif code > 0 and not run.last_line():
                why = f"exit code {code}, and nothing in its log: do all nodes share {run.folder.parent}?"
            found.append(End(run.name, code, why))
        return found

    def stop(self) -> str:
        """End all runs with their workers."""
        self._crew.stop()
        return ""
