"""Who computes a sweep's runs: from what a user types to an engine, and to the kind of device it has."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ducats.cluster import connected, seconds_of
from ducats.cluster.joining import import_ray
from ducats.cluster.slurm import make_executor, parsed
from ducats.errors import UserError
from ducats.sweep.engines import Engine
from ducats.sweep.on_ray import OnRay
from ducats.sweep.on_slurm import OnSlurm
from ducats.sweep.slots import make_slots, usable_cores
from ducats.sweep.workers import Processes

ENGINES = ("local", "ray", "slurm")
GPUS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket")  # SLURM's words for them
RESOURCES = ("gres", "tres_per_node", "tres_per_task", "tres_per_job")  # and for all kinds of things


@dataclass(frozen=True)
class Where:
    """What the command line says of where runs are computed.

    Args:
        engine: local, ray or slurm.
        devices: as ``make_slots`` has them; elsewhere than here, cpu, cuda or auto.
        workers: runs at a time.
        cpus: of each run, on Ray.
        address: of a Ray cluster.
        timeout: of the whole sweep, on Ray.
        slurm: settings for sbatch, as key=value.
    """

    engine: str = "local"
    devices: str = "auto"
    workers: int | None = None
    cpus: int | None = None
    address: str | None = None
    timeout: str | None = None
    slurm: Sequence[str] = ()


class Opened(NamedTuple):
    """Who computes runs."""

    engine: Engine
    kind: str  # of device: cpu, cuda or mps
    seconds: float | None = None  # that it may take


@contextmanager
def opened(where: Where, out: Path, name: str) -> Iterator[Opened]:
    """Find who computes runs.

    Args:
        where: what was said.
        out: the sweep's folder.
        name: of the sweep.

    Raises:
        UserError: Options do not go together, or what they name is not there.
    """
    _check(where)
    if where.engine == "local":
        slots = make_slots(where.devices, where.workers, usable_cores(), os.environ)
        yield Opened(Processes(slots), slots[0].kind)
    elif where.engine == "ray":
        seconds = None if where.timeout is None else seconds_of(where.timeout)
        with connected(where.address or "auto"):
            kind = _kind_on_ray(where.devices)
            cpus = where.cpus or (None if kind == "cuda" else 1)
            yield Opened(OnRay(cpus=cpus, gpus=kind == "cuda", most=where.workers), kind, seconds)
    else:
        folder = (out / "slurm").absolute()
        executor = make_executor(folder, where.slurm, name=f"ducats-{name}", most=where.workers)
        kind = where.devices if where.devices != "auto" else _kind_on_slurm(where.slurm)
        yield Opened(OnSlurm(executor, folder), kind)


def _check(where: Where) -> None:
    if where.engine not in ENGINES:
        raise UserError(f"--engine {where.engine} cannot be; there are: {', '.join(ENGINES)}")
    for option, given, engine in (
        ("--address", where.address, "ray"),
        ("--cpus", where.cpus, "ray"),
        ("--timeout", where.timeout, "ray"),
        ("--slurm", where.slurm, "slurm"),
    ):
        if given not in (None, ()) and where.engine != engine:
            raise UserError(f"{option} goes with --engine {engine} alone: leave it out, or give that engine")
    if where.engine != "local" and where.devices not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"--devices {where.devices} is of this machine, and --engine {where.engine} hands GPUs out "
            "itself: give cpu, cuda or auto"
        )
    for option, number in (("--workers", where.workers), ("--cpus", where.cpus)):
        if number is not None and number < 1:
            raise UserError(f"{option} must be at least 1, not {number}")


def _kind_on_ray(devices: str) -> str:
    gpus = any(node["Resources"].get("GPU") for node in import_ray().nodes() if node["Alive"])
    if devices == "cuda" and not gpus:
        raise UserError("--devices cuda: no node of the Ray cluster has a GPU; --devices cpu works anywhere")
    return "cuda" if gpus and devices != "cpu" else "cpu"


def _kind_on_slurm(settings: Sequence[str]) -> str:
    """What a job that asks for these has.

    >>> _kind_on_slurm(["partition=gpu", "gres=gpu:a100:1"]), _kind_on_slurm(["partition=gpu"])
    ('cuda', 'cpu')
    >>> _kind_on_slurm(["--gpus-per-node=1"]), _kind_on_slurm(["gpus=0"])
    ('cuda', 'cpu')
    """
    for key, value in parsed(settings).items():
        if key in GPUS or (key in RESOURCES and "gpu" in str(value)):
            return "cpu" if value == 0 else "cuda"
    return "cpu"
