"""Execute a sweep on a Ray cluster whose nodes share the output folder."""

from collections.abc import Sequence

from ducats.sweep.jobs import JobEnd, SweepJob
from ducats.utils.child_process import run_subcommand
from ducats.utils.cluster import TaskLost, TaskPool
from ducats.utils.errors import UserError


class RaySweepBackend:
    """Execute runs as tasks of the connected cluster.

    A run that is lost with its worker or node is restarted elsewhere and resumes from its last checkpoint.
    The cluster ends all runs when this process ends.

    Args:
        cpus_per_run: CPUs per run; None means half of a node's CPUs, divided by its GPUs.
        max_runs: maximum number of parallel runs; None means as many as fit into half of the CPUs.
    """

    poll_seconds = 0.5

    def __init__(self, *, cpus_per_run: float | None, use_gpu: bool, max_runs: int | None) -> None:
        self._task_pool = TaskPool(
            run_subcommand, cpus_per_task=cpus_per_run, use_gpu=use_gpu, max_tasks=max_runs
        )
        self._running: dict[str, SweepJob] = {}

    def free_slots(self) -> int:
        """Return the number of free slots of the cluster."""
        return self._task_pool.free_slots()

    def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
        """Submit runs to the cluster."""
        self._running |= {job.name: job for job in jobs}
        return [self._task_pool.submit(job.name, job.arguments, job.log_path, job.lock_path) for job in jobs]

    def pop_finished(self) -> list[JobEnd]:
        """Return the runs that ended, or were lost too often."""
        ends = []
        for name, code, error in self._task_pool.wait(0):
            job, reason = self._running.pop(name), ""
            if error is not None:
                kind = "" if isinstance(error, UserError | TaskLost) else f"{type(error).__name__}: "
                code, reason = 1, f"{kind}{error}".partition("\n")[0]
            elif code > 0 and not job.last_line():
                reason = f"exit code {code} with an empty log; check that all nodes share {job.folder.parent}"
            ends.append(JobEnd(job.name, code, reason))
        return ends

    def stop(self) -> str:
        """Stop all runs and their workers."""
        self._task_pool.stop()
        return ""
