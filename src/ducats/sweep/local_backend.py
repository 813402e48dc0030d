"""Execute a sweep on this machine: slots for parallel runs, each with its device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from ducats.sweep.jobs import JobEnd, SweepJob
from ducats.utils.child_process import start_warm, stop_processes
from ducats.utils.errors import UserError


@dataclass(frozen=True)
class Slot:
    """A device for one run at a time."""

    device_type: str  # cpu, cuda or mps; ``engine.device`` of the run
    device_name: str  # display name, e.g. cuda:1
    environment: Mapping[str, str] = field(default_factory=dict)  # additional variables of the run


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
    names = _device_names(devices)
    device_types = {name.partition(":")[0] for name in names}
    if len(device_types) > 1 or not device_types <= {"cpu", "cuda", "mps"}:
        raise UserError(
            f"--devices must be cpu, mps, or GPUs as cuda:0,cuda:1, not {devices}; a sweep uses one type of "
            "device, as types may differ in precision"
        )
    (device_type,) = device_types
    count = workers or (cores if device_type == "cpu" else len(names))
    # Without a limit, each run would use all cores, and the runs would slow each other down.
    limit_threads = device_type == "cpu" or count > 1
    threads = _thread_environment(max(1, cores // count), environment) if limit_threads else {}
    assigned = [names[i % len(names)] for i in range(count)]
    return [
        Slot(device_type, name, {**_device_environment(name, environment), **threads}) for name in assigned
    ]


class LocalSweepBackend:
    """Execute runs on this machine, one process per slot."""

    poll_seconds = 0.1

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._running: dict[str, tuple[Slot, BaseProcess]] = {}

    def free_slots(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
        """Start one process per run."""
        for job in jobs:
            slot = self._free.pop(0)
            process = start_warm("ducats.cli:main", (job.arguments,), job.log_path, slot.environment)
            self._running[job.name] = slot, process
        return [self._running[job.name][0].device_name for job in jobs]

    def pop_finished(self) -> list[JobEnd]:
        """Return the runs whose process has ended."""
        ends = [
            JobEnd(name, process.exitcode)
            for name, (_, process) in self._running.items()
            if process.exitcode is not None
        ]
        self._free += [self._running.pop(end.name)[0] for end in ends]
        return ends

    def stop(self) -> str:
        """Stop all active runs and their child processes; the next sweep resumes them."""
        stop_processes([process for _, process in self._running.values()])
        return ""


def _thread_environment(count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Set the number of threads of a run, unless the environment sets it."""
    if environment.get("OMP_NUM_THREADS"):
        return {}
    variables = {"OMP_NUM_THREADS": str(count)}
    if count > 1 and "OMP_WAIT_POLICY" not in environment:
        # Waiting threads spin by default. If another process shares the core, this takes five times as long.
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    return variables


def _device_names(devices: str) -> list[str]:
    if devices in ("auto", "cuda"):
        import torch

        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        if devices == "cuda" and not gpus:
            raise UserError("--devices cuda: torch does not see a GPU; use --devices cpu")
        return gpus or ["cpu"]
    return [name.strip() for name in devices.split(",") if name.strip()] or [devices]


def _device_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    device_type, _, number = name.partition(":")
    if device_type != "cuda":
        return {}
    visible = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if not number.isdecimal() or (visible and int(number) >= len(visible)):
        raise UserError(f"--devices {name}: no such GPU; numbering starts at cuda:0")
    return {"CUDA_VISIBLE_DEVICES": visible[int(number)] if visible else number}
