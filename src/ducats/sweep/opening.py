"""Open the backend of a sweep from command-line options."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ducats.cluster import parse_duration, ray_session
from ducats.cluster.ray_connection import import_ray
from ducats.cluster.slurm import make_executor, parse_settings
from ducats.errors import UserError
from ducats.sweep.engines import Engine
from ducats.sweep.on_ray import OnRay
from ducats.sweep.on_slurm import OnSlurm
from ducats.sweep.slots import make_slots, usable_cores
from ducats.sweep.workers import Processes

ENGINES = ("local", "ray", "slurm")
GPUS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket")  # sbatch options for GPUs
RESOURCES = ("gres", "tres_per_node", "tres_per_task", "tres_per_job")  # sbatch options for generic resources


@dataclass(frozen=True)
class Where:
    """Command-line options for the backend of a sweep.

    Args:
        engine: local, ray or slurm.
        devices: see ``make_slots``; with ray and slurm cpu, cuda or auto.
        workers: number of parallel runs.
        cpus: CPUs per run (Ray only).
        address: address of the Ray cluster.
        timeout: time limit of the whole sweep (Ray only).
        slurm: sbatch options as key=value.
    """

    engine: str = "local"
    devices: str = "auto"
    workers: int | None = None
    cpus: int | None = None
    address: str | None = None
    timeout: str | None = None
    slurm: Sequence[str] = ()


class Opened(NamedTuple):
    """An open backend."""

    engine: Engine
    kind: str  # device type: cpu, cuda or mps
    seconds: float | None = None  # time limit


@contextmanager
def opened(where: Where, out: Path, name: str) -> Iterator[Opened]:
    """Open the backend that executes the runs of a sweep.

    Args:
        out: output folder of the sweep.
        name: name of the sweep.

    Raises:
        UserError: If options conflict, or a device or cluster is not available.
    """
    _check(where)
    if where.engine == "local":
        slots = make_slots(where.devices, where.workers, usable_cores(), os.environ)
        yield Opened(Processes(slots), slots[0].kind)
    elif where.engine == "ray":
        seconds = None if where.timeout is None else parse_duration(where.timeout)
        with ray_session(where.address or "auto"):
            kind = _kind_on_ray(where.devices)
            cpus = where.cpus or (None if kind == "cuda" else 1)
            yield Opened(OnRay(cpus=cpus, gpus=kind == "cuda", most=where.workers), kind, seconds)
    else:
        folder = (out / "slurm").absolute()
        executor = make_executor(folder, where.slurm, name=f"ducats-{name}", max_jobs=where.workers)
        kind = where.devices if where.devices != "auto" else _kind_on_slurm(where.slurm)
        yield Opened(OnSlurm(executor, folder), kind)


def _check(where: Where) -> None:
    if where.engine not in ENGINES:
        raise UserError(f"--backend must be one of {', '.join(ENGINES)}, not {where.engine}")
    for option, given, engine in (
        ("--ray-address", where.address, "ray"),
        ("--cpus-per-run", where.cpus, "ray"),
        ("--timeout", where.timeout, "ray"),
        ("--slurm", where.slurm, "slurm"),
    ):
        if given not in (None, ()) and where.engine != engine:
            raise UserError(f"{option} needs --backend {engine}; omit {option} or change the engine")
    if where.engine != "local" and where.devices not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"--devices must be cpu, cuda or auto with --backend {where.engine}, which assigns the GPUs; not "
            f"{where.devices}"
        )
    for option, number in (("--workers", where.workers), ("--cpus-per-run", where.cpus)):
        if number is not None and number < 1:
            raise UserError(f"{option} must be at least 1, not {number}")


def _kind_on_ray(devices: str) -> str:
    gpus = any(node["Resources"].get("GPU") for node in import_ray().nodes() if node["Alive"])
    if devices == "cuda" and not gpus:
        raise UserError("--devices cuda: no node of the Ray cluster has a GPU; use --devices cpu")
    return "cuda" if gpus and devices != "cpu" else "cpu"


def _kind_on_slurm(settings: Sequence[str]) -> str:
    """Return the device type of a job with these sbatch options.

    >>> _kind_on_slurm(["partition=gpu", "gres=gpu:a100:1"]), _kind_on_slurm(["partition=gpu"])
    ('cuda', 'cpu')
    >>> _kind_on_slurm(["--gpus-per-node=1"]), _kind_on_slurm(["gpus=0"])
    ('cuda', 'cpu')
    """
    for key, value in parse_settings(settings).items():
        if key in GPUS or (key in RESOURCES and "gpu" in str(value)):
            return "cpu" if value == 0 else "cuda"
    return "cpu"
