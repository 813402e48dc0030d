"""What the machine offers: versions, device, disk, memory."""

import importlib
import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ducats.config import Config
from ducats.doctor.finding import Finding
from ducats.errors import UserError

LEAST_DISK_GB = 1.0


def check_torchvision() -> Iterator[Finding]:
    """Whether torchvision fits torch."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # one built for another torch fails with RuntimeError, deep inside torch
        yield Finding(
            "error",
            f"torchvision cannot be imported ({type(error).__name__}: {' '.join(str(error).split())}); "
            "install torch and torchvision from the same index, e.g. pip install --force-reinstall torch "
            "torchvision --index-url https://download.pytorch.org/whl/cpu",
        )


def check_disk() -> Iterator[Finding]:
    """Whether there is room where runs are written."""
    free = free_disk_gb(Path.cwd())
    if free < LEAST_DISK_GB:
        yield Finding(
            "warning",
            f"{Path.cwd()}, where runs are written, has {free:.1f} GB left on its disk; free some space",
        )


def check_machine(config: Config) -> Iterator[Finding]:
    """Versions, and the device that the run would get; an error if it cannot have the one it names."""
    import torch
    import torchvision

    from ducats.engine.processes import make_fabric

    engine = config.engine
    device = "none"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            device = make_fabric(engine.device, engine.processes, engine.precision).device.type
        except UserError as error:
            yield Finding(
                "error", f"{error}; set engine.device to auto, cpu, cuda or mps, or mend its driver"
            )
    threads = engine.threads or torch.get_num_threads()
    yield Finding(
        "note",
        f"Python {platform.python_version()}, torch {torch.__version__}, torchvision "
        f"{torchvision.__version__}; device {device}, CPU threads: {threads}",
    )
    for warning in caught:
        if not issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning):
            yield Finding("warning", f"engine: {' '.join(str(warning.message).split())}")


def free_disk_gb(folder: Path) -> float:
    """Gigabytes left where this folder is, or would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def free_memory_gb() -> float | None:
    """Gigabytes that may still be taken; None if the system does not say."""
    # SC_AVPHYS_PAGES leaves out what the system would give back from its file cache, which is most of the
    # memory once the doctor has read every image.
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return None
