"""Execute a sweep as SLURM jobs, which continue when the submitting process ends."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ducats.cluster.slurm import SlurmSubcommand
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.sweep.engines import End, Running

MOST = 1000  # jobs per array: the default limit of SLURM
ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "PREEMPTED", "CONFIGURING", "SUSPENDED")
BETWEEN = 60.0  # seconds between two queries for jobs without a result
SLOW = 20.0  # seconds until the result of a finished job must be visible on this machine


class OnSlurm:
    """Execute runs as a job array, one job per run. A restarted sweep tracks the jobs that are still active.

    Args:
        executor: submitit executor.
        folder: for the files of submitit and for ``jobs.json``, which maps runs to jobs.
        most: maximum number of parallel jobs if the executor has no queue; None means all at once.
    """

    def __init__(self, executor: Any, folder: Path, most: int | None = None) -> None:
        self._executor, self._book, self._most = executor, folder / "jobs.json", most
        self._jobs: dict[str, Any] = {}
        self._silent: dict[str, float] = {}  # when a finished job without a result was first seen
        self._asked = 0.0  # time of the last query to SLURM

    @property
    def pace(self) -> float:
        """Seconds between two polls; longer for a queue."""
        return 5.0 if self._most is None else 0.2

    def room(self) -> int:
        """Return the number of free slots; a queue takes one array at a time."""
        if self._most is not None:
            return self._most - len(self._jobs)
        return 0 if self._jobs else MOST

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Track the jobs that are still active and submit the others."""
        if not runs:
            return []
        before = self._known()
        for run in runs:
            job = self._alive(before.get(run.name))
            if job is not None:
                self._jobs[run.name] = job
        fresh = [run for run in runs if run.name not in self._jobs]
        if fresh:
            columns = zip(*((run.command, run.log, run.lock) for run in fresh), strict=True)
            try:
                jobs = self._executor.map_array(SlurmSubcommand(), *columns)
            except Exception as error:  # any failure of sbatch
                why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                raise UserError(f"SLURM rejected the jobs ({why}); check --slurm") from error
            self._jobs |= {run.name: job for run, job in zip(fresh, jobs, strict=True)}
            known = before | {name: job.job_id for name, job in self._jobs.items()}
            write_text_atomically(self._book, json.dumps(known, indent=1) + "\n")
        return [f"job {self._jobs[run.name].job_id}" for run in runs]

    def ended(self) -> list[End]:
        """Return the runs whose job left a result, or ended without one."""
        found = []
        ask = time.monotonic() > self._asked + BETWEEN  # one query returns the state of all jobs
        self._asked = time.monotonic() if ask else self._asked
        for place, (name, job) in enumerate(self._jobs.items()):
            if not job.done(force_check=ask and place == 0):
                self._silent.pop(name, None)
                continue
            if job.paths.result_pickle.exists():
                found.append(self._end(name, job))
            elif time.monotonic() - self._silent.setdefault(name, time.monotonic()) > SLOW:
                words = f"job {job.job_id} ended with state {job.state}; see {job.paths.stderr}"
                found.append(End(name, 1, words))
        for end in found:
            del self._jobs[end.name]
        return found

    def stop(self) -> str:
        """Cancel the jobs, or leave them in the queue and return a message."""
        if self._most is None:
            numbers = " ".join(sorted({job.job_id.partition("_")[0] for job in self._jobs.values()}))
            said = f"jobs continue; run the same command again to track them, `scancel {numbers}` to cancel"
            return said if numbers else ""
        for job in self._jobs.values():
            job.cancel()
        while not all(job.done() for job in self._jobs.values()):
            time.sleep(0.05)
        return ""

    def _end(self, name: str, job: Any) -> End:
        error = job.exception()
        if error is None:
            return End(name, int(job.result()))
        return End(name, 1, f"job {job.job_id} failed; see {job.paths.stderr}")

    def _known(self) -> dict[str, str]:
        return dict(json.loads(self._book.read_text())) if self._book.exists() else {}

    def _alive(self, number: str | None) -> Any:
        """Return the job with this id if it is pending or running, otherwise None."""
        if number is None or self._most is not None:
            return None
        import submitit

        job: Any = submitit.SlurmJob(self._executor.folder, number)
        state = job.get_info().get("State", "").upper()
        return job if state.startswith(ALIVE) else None
