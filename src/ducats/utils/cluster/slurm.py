"""`ducats` commands as SLURM jobs, through submitit."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ducats.utils.child_process import run_subcommand
from ducats.utils.errors import UserError

SIGNAL_GRACE_SECONDS = 5.0  # seconds in which this process receives the signal that ended the command
MAX_REQUEUES = 50  # times that a job is requeued at SLURM's time limit, to resume
SINGLE_TASK_SETTINGS = {"nodes", "ntasks", "ntasks_per_node"}  # settings whose only valid value is 1
RESERVED_SETTINGS = {"array", "output", "error", "wrap"}  # settings controlled by the sweep


class SlurmSubcommand:
    """Function of a job; at its time limit or when preempted, the job is requeued and resumes."""

    def __call__(self, command: Sequence[str], log: Path, lock: Path) -> int:
        """Run ``ducats``; return its exit code. If a signal ended it, exit with 128 plus the signal."""
        threads = os.environ.get("OMP_NUM_THREADS") or os.environ.get("SLURM_CPUS_PER_TASK", "1")
        code = run_subcommand(command, log, lock, {"OMP_NUM_THREADS": threads})
        if code < 0:
            # SLURM signals all processes of a job at once; in this one, submitit handles the signal.
            time.sleep(SIGNAL_GRACE_SECONDS)
            raise SystemExit(128 - code)
        return code

    def checkpoint(self, *arguments: Any) -> Any:
        """Return the same submission for the requeued job."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)


def make_executor(folder: Path, settings: Sequence[str], *, name: str, max_jobs: int | None) -> Any:
    """Build the submitit executor.

    Args:
        folder: for submitit's files, on a file system shared by all nodes.
        settings: ``key=value`` with names of sbatch: partition, time, gpus_per_node, mem, account, ...
        name: of the jobs.
        max_jobs: concurrent jobs; None: as many as SLURM allows.

    Raises:
        UserError: SLURM is not available, or a setting is invalid.
    """
    try:
        import submitit
    except ImportError:
        raise UserError("--backend slurm needs submitit; run pip install 'ducats[slurm]'") from None
    missing = [program for program in ("sbatch", "srun") if shutil.which(program) is None]
    if missing:
        raise UserError(
            f"--backend slurm needs {' and '.join(missing)} on PATH; run the command on a login node of the "
            "cluster, or omit --backend"
        )
    parameters = parse_settings(settings)
    if "time" not in parameters:
        raise UserError(
            "--backend slurm needs a time limit per job, such as --slurm time=4:00:00; a longer run is "
            "requeued and resumes"
        )
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=MAX_REQUEUES)
    executor.update_parameters(name=name)
    if max_jobs is not None:
        executor.update_parameters(slurm_array_parallelism=max_jobs)
    sbatch_only = {}
    for key, value in parameters.items():
        try:
            executor.update_parameters(**{f"slurm_{key}": value})
        except NameError:  # unknown to submitit: passed on to sbatch
            sbatch_only[key.replace("_", "-")] = value
    if sbatch_only:
        executor.update_parameters(slurm_additional_parameters=sbatch_only)
    return executor


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings into parameters of submitit.

    >>> parse_settings(["--gpus-per-node=1", "mem=32GB", "time=1:00:00"])
    {'gpus_per_node': 1, 'mem': '32GB', 'time': 60}
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        key = key.removeprefix("--").replace("-", "_")
        if not (key and equals and value):
            raise UserError(f"--slurm {setting} is not a key=value pair, such as partition=gpu or mem=32GB")
        if key in SINGLE_TASK_SETTINGS and value != "1":
            raise UserError(f"--slurm {setting} is not supported; a run of a sweep is one task on one node")
        if key in RESERVED_SETTINGS:
            raise UserError(f"--slurm {setting} is not supported; the sweep sets {key} itself")
        found[key] = int(value) if value.isdecimal() else {"true": True}.get(value, value)
    if "time" in found:
        found["time"] = parse_minutes(str(found["time"]))
    return found


def parse_minutes(time: str) -> int:
    """Convert a time in the format of sbatch to minutes.

    >>> [parse_minutes(time) for time in ("90", "90:00", "4:00:00", "1-12", "1-12:30")]
    [90, 90, 240, 2160, 2190]
    """
    days, dash, rest = time.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:  # days-hours, days-hours:minutes, days-hours:minutes:seconds
            hours, minutes, seconds = (*parts, 0, 0)[:3]
        elif len(parts) == 3:
            hours, minutes, seconds = parts
        else:  # minutes, minutes:seconds
            hours, minutes, seconds = 0, *(*parts, 0)[:2]
        total = (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)
        if total < 1 or len(parts) > 3:
            raise ValueError(time)
    except ValueError:
        raise UserError(
            f"--slurm time={time} is not a time; give minutes, or hours:minutes:seconds as in 4:00:00"
        ) from None
    return total
