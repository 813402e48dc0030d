"""A command as a job of SLURM, through submitit."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ducats.cluster.errand import run_errand
from ducats.errors import UserError

SETTLING = 5.0  # seconds in which we hear, too, of a signal that ended the command
REQUEUES = 50  # times that a command which SLURM's limit ends is put into the queue again, to go on
ALONE = {"nodes", "ntasks", "ntasks_per_node"}  # settings of which there is one value: 1
OURS = {"array", "output", "error", "wrap"}  # settings that a sweep makes itself


class SlurmErrand:
    """What a job does; at its time limit, or preempted, it goes back into the queue, to go on from there."""

    def __call__(self, command: Sequence[str], log: Path, lock: Path) -> int:
        """Run ``ducats``; return its exit code. If a signal ended it, so ends the job: SLURM knows why."""
        threads = os.environ.get("OMP_NUM_THREADS") or os.environ.get("SLURM_CPUS_PER_TASK", "1")
        code = run_errand(command, log, lock, {"OMP_NUM_THREADS": threads})
        if code < 0:
            # SLURM signals all processes of a job at once, and what this one does then is submitit's affair.
            time.sleep(SETTLING)
            raise SystemExit(128 - code)
        return code

    def checkpoint(self, *arguments: Any) -> Any:
        """What the job does when it comes back: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)


def make_executor(folder: Path, settings: Sequence[str], *, name: str, most: int | None) -> Any:
    """Whom to hand jobs to.

    Args:
        folder: of submitit's own files; every node must see it.
        settings: ``key=value`` as sbatch has them: partition, time, gpus_per_node, mem, account, ...
        name: of the jobs.
        most: jobs at a time; None: as many as SLURM allows.

    Raises:
        UserError: There is no SLURM, or a setting cannot be.
    """
    try:
        import submitit
    except ImportError:
        raise UserError("--engine slurm needs submitit: pip install 'ducats[slurm]'") from None
    missing = [program for program in ("sbatch", "srun") if shutil.which(program) is None]
    if missing:
        raise UserError(
            f"--engine slurm needs {' and '.join(missing)} on PATH, which this machine has not: give the "
            "command on a login node of the cluster, or leave --engine out"
        )
    wanted = parsed(settings)
    if "time" not in wanted:
        raise UserError(
            "--engine slurm needs the time that a job may take: --slurm time=4:00:00 (a longer run "
            "comes back and goes on)"
        )
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=REQUEUES)
    executor.update_parameters(name=name)
    if most is not None:
        executor.update_parameters(slurm_array_parallelism=most)
    others = {}
    for key, value in wanted.items():
        try:
            executor.update_parameters(**{f"slurm_{key}": value})
        except NameError:  # what submitit has no name for, sbatch may know
            others[key.replace("_", "-")] = value
    if others:
        executor.update_parameters(slurm_additional_parameters=others)
    return executor


def parsed(settings: Sequence[str]) -> dict[str, Any]:
    """Settings by name, as submitit has them.

    >>> parsed(["--gpus-per-node=1", "mem=32GB", "time=1:00:00"])
    {'gpus_per_node': 1, 'mem': '32GB', 'time': 60}
    """
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        key = key.removeprefix("--").replace("-", "_")
        if not (key and equals and value):
            raise UserError(f"--slurm {setting} is no key=value, such as partition=gpu or mem=32GB")
        if key in ALONE and value != "1":
            raise UserError(f"--slurm {setting} cannot be: a run of a sweep is one task on one node")
        if key in OURS:
            raise UserError(f"--slurm {setting} cannot be: the sweep says that itself; leave it out")
        found[key] = int(value) if value.isdecimal() else {"true": True}.get(value, value)
    if "time" in found:
        found["time"] = minutes_of(str(found["time"]))
    return found


def minutes_of(time: str) -> int:
    """A time as sbatch takes it, in minutes.

    >>> [minutes_of(time) for time in ("90", "90:00", "4:00:00", "1-12", "1-12:30")]
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
        whole = (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)
        if whole < 1 or len(parts) > 3:
            raise ValueError(time)
    except ValueError:
        raise UserError(
            f"--slurm time={time} is no time: give minutes, or hours:minutes:seconds as 4:00:00"
        ) from None
    return whole
