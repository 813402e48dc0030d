"""Open the backend of a sweep from command-line options."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ducats.sweep.jobs import SweepBackend
from ducats.sweep.local_backend import LocalSweepBackend, make_slots
from ducats.sweep.ray_backend import RaySweepBackend
from ducats.sweep.slurm_backend import SlurmSweepBackend
from ducats.utils.cluster.ray_connection import cluster_device, parse_duration, ray_session
from ducats.utils.cluster.slurm import make_executor, parse_settings
from ducats.utils.errors import UserError
from ducats.utils.resources import available_cores

SWEEP_BACKENDS = ("local", "ray", "slurm")
_GPU_OPTIONS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket")  # sbatch options for GPUs
_RESOURCE_OPTIONS = ("gres", "tres_per_node", "tres_per_task", "tres_per_job")  # for generic resources


@dataclass(frozen=True)
class BackendOptions:
    """Command-line options for the backend of a sweep."""

    backend: str = "local"  # or ray, slurm
    devices: str = "auto"  # see ``make_slots``; with ray and slurm cpu, cuda or auto
    workers: int | None = None  # number of parallel runs
    cpus_per_run: int | None = None  # Ray only
    ray_address: str | None = None
    timeout: str | None = None  # time limit of the whole sweep; Ray only
    slurm: Sequence[str] = ()  # sbatch options as key=value


class OpenedBackend(NamedTuple):
    """An open backend."""

    backend: SweepBackend
    device_type: str  # cpu, cuda or mps
    time_limit: float | None = None  # seconds


@contextmanager
def open_backend(options: BackendOptions, out: Path, name: str) -> Iterator[OpenedBackend]:
    """Open the backend that executes the runs of a sweep.

    Raises:
        UserError: If options conflict, or a device or cluster is not available.
    """
    _check_options(options)
    if options.backend == "local":
        slots = make_slots(options.devices, options.workers, available_cores(), os.environ)
        yield OpenedBackend(LocalSweepBackend(slots), slots[0].device_type)
    elif options.backend == "ray":
        time_limit = None if options.timeout is None else parse_duration(options.timeout)
        with ray_session(options.ray_address or "auto"):
            device_type = cluster_device("--devices", options.devices)
            use_gpu = device_type == "cuda"
            cpus_per_run = options.cpus_per_run or (None if use_gpu else 1)
            backend = RaySweepBackend(cpus_per_run=cpus_per_run, use_gpu=use_gpu, max_runs=options.workers)
            yield OpenedBackend(backend, device_type, time_limit)
    else:
        folder = (out / "slurm").absolute()
        executor = make_executor(folder, options.slurm, name=f"ducats-{name}", max_jobs=options.workers)
        device_type = options.devices if options.devices != "auto" else _slurm_device_type(options.slurm)
        yield OpenedBackend(SlurmSweepBackend(executor, folder), device_type)


def _check_options(options: BackendOptions) -> None:
    if options.backend not in SWEEP_BACKENDS:
        raise UserError(f"--backend must be one of {', '.join(SWEEP_BACKENDS)}, not {options.backend}")
    for option, value, backend in (
        ("--ray-address", options.ray_address, "ray"),
        ("--cpus-per-run", options.cpus_per_run, "ray"),
        ("--timeout", options.timeout, "ray"),
        ("--slurm", options.slurm, "slurm"),
    ):
        if value not in (None, ()) and options.backend != backend:
            raise UserError(f"{option} needs --backend {backend}; omit {option} or change --backend")
    if options.backend != "local" and options.devices not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"--devices must be cpu, cuda or auto with --backend {options.backend}, which assigns the GPUs; "
            f"not {options.devices}"
        )
    for option, number in (("--workers", options.workers), ("--cpus-per-run", options.cpus_per_run)):
        if number is not None and number < 1:
            raise UserError(f"{option} must be at least 1, not {number}")


def _slurm_device_type(settings: Sequence[str]) -> str:
    """Return the device type of a job with these sbatch options.

    >>> _slurm_device_type(["partition=gpu", "gres=gpu:a100:1"]), _slurm_device_type(["partition=gpu"])
    ('cuda', 'cpu')
    >>> _slurm_device_type(["--gpus-per-node=1"]), _slurm_device_type(["gpus=0"])
    ('cuda', 'cpu')
    """
    for key, value in parse_settings(settings).items():
        if key in _GPU_OPTIONS or (key in _RESOURCE_OPTIONS and "gpu" in str(value)):
            return "cpu" if value == 0 else "cuda"
    return "cpu"
