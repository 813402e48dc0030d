"""Execute a sweep as SLURM jobs, which continue when the submitting process ends."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ducats.sweep.jobs import JobEnd, SweepJob
from ducats.utils.cluster.slurm import SlurmSubcommand
from ducats.utils.errors import UserError
from ducats.utils.files import write_text_atomically

_MAX_ARRAY_JOBS = 1000  # jobs per array: the default limit of SLURM
_ACTIVE_STATES = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "PREEMPTED", "CONFIGURING", "SUSPENDED")
_QUERY_SECONDS = 60.0  # seconds between two queries for jobs without a result
_RESULT_TIMEOUT_SECONDS = 20.0  # seconds until the result of a finished job must be visible on this machine


class SlurmSweepBackend:
    """Execute runs as a job array, one job per run. A restarted sweep tracks the jobs that are still active.

    Args:
        folder: for the files of submitit and for ``jobs.json``, which maps runs to jobs.
        max_jobs: maximum number of parallel jobs if the executor has no queue; None means all at once.
    """

    def __init__(self, executor: Any, folder: Path, max_jobs: int | None = None) -> None:
        self._executor, self._jobs_file, self._max_jobs = executor, folder / "jobs.json", max_jobs
        self._jobs: dict[str, Any] = {}
        # When a finished job without a result was first seen.
        self._first_seen_without_result: dict[str, float] = {}
        self._last_query = 0.0  # time of the last query to SLURM

    @property
    def poll_seconds(self) -> float:
        """Seconds between two polls; longer for a queue."""
        return 5.0 if self._max_jobs is None else 0.2

    def free_slots(self) -> int:
        """Return the number of free slots; a queue takes one array at a time."""
        if self._max_jobs is not None:
            return self._max_jobs - len(self._jobs)
        return 0 if self._jobs else _MAX_ARRAY_JOBS

    def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
        """Track the jobs that are still active and submit the others."""
        if not jobs:
            return []
        saved_ids = self._load_job_ids()
        for job in jobs:
            slurm_job = self._active_job(saved_ids.get(job.name))
            if slurm_job is not None:
                self._jobs[job.name] = slurm_job
        new_jobs = [job for job in jobs if job.name not in self._jobs]
        if new_jobs:
            columns = zip(*((job.arguments, job.log_path, job.lock_path) for job in new_jobs), strict=True)
            try:
                slurm_jobs = self._executor.map_array(SlurmSubcommand(), *columns)
            except Exception as error:  # any failure of sbatch
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                raise UserError(f"SLURM rejected the jobs ({reason}); check --slurm") from error
            self._jobs |= {job.name: slurm_job for job, slurm_job in zip(new_jobs, slurm_jobs, strict=True)}
            job_ids = saved_ids | {name: job.job_id for name, job in self._jobs.items()}
            write_text_atomically(self._jobs_file, json.dumps(job_ids, indent=1) + "\n")
        return [f"job {self._jobs[job.name].job_id}" for job in jobs]

    def pop_finished(self) -> list[JobEnd]:
        """Return the runs whose job left a result, or ended without one."""
        ends = []
        # One query returns the state of all jobs.
        query_slurm = time.monotonic() > self._last_query + _QUERY_SECONDS
        self._last_query = time.monotonic() if query_slurm else self._last_query
        for i, (name, job) in enumerate(self._jobs.items()):
            if not job.done(force_check=query_slurm and i == 0):
                self._first_seen_without_result.pop(name, None)
                continue
            if job.paths.result_pickle.exists():
                ends.append(self._end(name, job))
            elif (
                time.monotonic() - self._first_seen_without_result.setdefault(name, time.monotonic())
                > _RESULT_TIMEOUT_SECONDS
            ):
                reason = f"job {job.job_id} ended with state {job.state}; see {job.paths.stderr}"
                ends.append(JobEnd(name, 1, reason))
        for end in ends:
            del self._jobs[end.name]
        return ends

    def stop(self) -> str:
        """Cancel the jobs, or leave them in the queue and return a message."""
        if self._max_jobs is None:
            job_ids = " ".join(sorted({job.job_id.partition("_")[0] for job in self._jobs.values()}))
            message = (
                f"jobs continue; run the same command again to track them, `scancel {job_ids}` to cancel"
            )
            return message if job_ids else ""
        for job in self._jobs.values():
            job.cancel()
        while not all(job.done() for job in self._jobs.values()):
            time.sleep(0.05)
        return ""

    def _end(self, name: str, job: Any) -> JobEnd:
        error = job.exception()
        if error is None:
            return JobEnd(name, int(job.result()))
        return JobEnd(name, 1, f"job {job.job_id} failed; see {job.paths.stderr}")

    def _load_job_ids(self) -> dict[str, str]:
        return dict(json.loads(self._jobs_file.read_text())) if self._jobs_file.exists() else {}

    def _active_job(self, job_id: str | None) -> Any:
        """Return the job with this id if it is pending or running, otherwise None."""
        if job_id is None or self._max_jobs is not None:
            return None
        import submitit

        job: Any = submitit.SlurmJob(self._executor.folder, job_id)
        state = job.get_info().get("State", "").upper()
        return job if state.startswith(_ACTIVE_STATES) else None
