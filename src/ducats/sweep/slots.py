"""Slots for parallel runs on this machine, each with its device."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ducats.errors import UserError


@dataclass(frozen=True)
class Slot:
    """A device for one run at a time.

    Args:
        kind: cpu, cuda or mps; ``engine.device`` of the run.
        title: display name, e.g. cuda:1.
        environment: additional environment variables of the run.
    """

    kind: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)


def make_slots(devices: str, workers: int | None, cores: int, environment: Mapping[str, str]) -> list[Slot]:
    """Return one slot per worker; devices are assigned round-robin.

    Args:
        devices: cpu, mps, cuda, or cuda:0,cuda:1; auto means all GPUs, or the CPU if there is none.
        workers: number of parallel runs; None means one per GPU, or one per core on a CPU.
        cores: number of usable cores; parallel runs share them evenly.
        environment: that of this process. cuda:0 is the first GPU in its CUDA_VISIBLE_DEVICES, and its
            OMP_NUM_THREADS is the number of threads of each run.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    names = _named(devices)
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda", "mps"}:
        raise UserError(
            f"--devices must be cpu, mps, or GPUs as cuda:0,cuda:1, not {devices}; a sweep uses one type of "
            "device, as types may differ in precision"
        )
    (kind,) = kinds
    count = workers or (cores if kind == "cpu" else len(names))
    # Without a limit, each run would use all cores, and the runs would slow each other down.
    shared = kind == "cpu" or count > 1
    threads = _threads(max(1, cores // count), environment) if shared else {}
    taken = [names[place % len(names)] for place in range(count)]
    return [Slot(kind, name, {**_device(name, environment), **threads}) for name in taken]


def _threads(count: int, ours: Mapping[str, str]) -> dict[str, str]:
    """Set the number of threads of a run, unless the environment sets it."""
    if ours.get("OMP_NUM_THREADS"):
        return {}
    several = {"OMP_NUM_THREADS": str(count)}
    if count > 1 and "OMP_WAIT_POLICY" not in ours:
        # Waiting threads spin by default. If another process shares the core, this takes five times as long.
        several["OMP_WAIT_POLICY"] = "PASSIVE"
    return several


def usable_cores() -> int:
    """Return the number of cores this process may use; in a container or job, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _named(devices: str) -> list[str]:
    if devices in ("auto", "cuda"):
        import torch

        gpus = [f"cuda:{place}" for place in range(torch.cuda.device_count())]
        if devices == "cuda" and not gpus:
            raise UserError("--devices cuda: torch does not see a GPU; use --devices cpu")
        return gpus or ["cpu"]
    return [name.strip() for name in devices.split(",") if name.strip()] or [devices]


def _device(name: str, ours: Mapping[str, str]) -> dict[str, str]:
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return {}
    visible = [gpu for gpu in ours.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if not number.isdecimal() or (visible and int(number) >= len(visible)):
        raise UserError(f"--devices {name}: no such GPU; numbering starts at cuda:0")
    return {"CUDA_VISIBLE_DEVICES": visible[int(number)] if visible else number}
