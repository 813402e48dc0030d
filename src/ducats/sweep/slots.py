"""Where runs of a sweep are computed: a slot for each run at a time, with a device of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ducats.errors import UserError


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time.

    Args:
        kind: cpu, cuda or mps: the run's ``engine.device``.
        title: what people call it: cpu, cuda:1.
        environment: what a run there sees on top of ours.
    """

    kind: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)


def make_slots(devices: str, workers: int | None, cores: int, environment: Mapping[str, str]) -> list[Slot]:
    """One slot for each worker, devices taken in turn.

    Args:
        devices: cpu, mps, cuda, or cuda:0,cuda:1; auto means every GPU, or the CPU where there is none.
        workers: runs at a time; None means one for each GPU, and on a CPU one for each core.
        cores: that may be used; several runs at a time share them evenly.
        environment: ours; where it hides GPUs, cuda:0 is the first that is left, and where it says how many
            threads a process may have (OMP_NUM_THREADS), each run has so many.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    names = _named(devices)
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda", "mps"}:
        raise UserError(
            f"--devices {devices} cannot be: give cpu, mps, or GPUs as cuda:0,cuda:1 (runs on different "
            "kinds of device may differ in precision, so one sweep has one kind)"
        )
    (kind,) = kinds
    count = workers or (cores if kind == "cpu" else len(names))
    # Without a share, each run would use every core, and all of them would wait for each other.
    shared = kind == "cpu" or count > 1
    threads = _threads(max(1, cores // count), environment) if shared else {}
    taken = [names[place % len(names)] for place in range(count)]
    return [Slot(kind, name, {**_device(name, environment), **threads}) for name in taken]


def _threads(count: int, ours: Mapping[str, str]) -> dict[str, str]:
    """So many threads for a run, where we were not told otherwise."""
    if ours.get("OMP_NUM_THREADS"):
        return {}
    several = {"OMP_NUM_THREADS": str(count)}
    if count > 1 and "OMP_WAIT_POLICY" not in ours:
        # Threads that wait for another one keep its core busy; if somebody else works there, too, it takes
        # five times as long.
        several["OMP_WAIT_POLICY"] = "PASSIVE"
    return several


def usable_cores() -> int:
    """Cores that this process may use: in a container or a job of a cluster, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _named(devices: str) -> list[str]:
    if devices in ("auto", "cuda"):
        import torch

        gpus = [f"cuda:{place}" for place in range(torch.cuda.device_count())]
        if devices == "cuda" and not gpus:
            raise UserError(
                "--devices cuda: there is no GPU that torch can see; --devices cpu works anywhere"
            )
        return gpus or ["cpu"]
    return [name.strip() for name in devices.split(",") if name.strip()] or [devices]


def _device(name: str, ours: Mapping[str, str]) -> dict[str, str]:
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return {}
    visible = [gpu for gpu in ours.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if not number.isdecimal() or (visible and int(number) >= len(visible)):
        raise UserError(f"--devices {name}: no such GPU; number them from cuda:0")
    return {"CUDA_VISIBLE_DEVICES": visible[int(number)] if visible else number}
