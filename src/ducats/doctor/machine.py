"""Check the machine: package versions, device and free disk space."""

import importlib
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

from ducats.config import Config
from ducats.utils.errors import UserError
from ducats.utils.findings import Finding, describe_exception
from ducats.utils.resources import free_disk_gb

MIN_FREE_DISK_GB = 1.0


def check_torchvision() -> Iterator[Finding]:
    """Check that torchvision can be imported with the installed torch."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # a build for another torch raises RuntimeError inside torch
        yield Finding(
            "error",
            f"torchvision cannot be imported ({describe_exception(error)}); "
            "install torch and torchvision from the same index, e.g. pip install --force-reinstall torch "
            "torchvision --index-url https://download.pytorch.org/whl/cpu",
        )


def check_disk() -> Iterator[Finding]:
    """Check for free disk space where runs are written."""
    free = free_disk_gb(Path.cwd())
    if free < MIN_FREE_DISK_GB:
        yield Finding(
            "warning",
            f"only {free:.1f} GB of disk space is left for runs in {Path.cwd()}; free some space",
        )


def check_machine(config: Config) -> Iterator[Finding]:
    """Report versions and the device of the run, or an error if the device is not available."""
    import torch
    import torchvision

    from ducats.training.distributed import make_fabric
    from ducats.training.performance import resolve_performance

    engine = config.engine
    device = "none"
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        try:
            fabric = make_fabric(
                engine.device,
                engine.processes or 1,
                engine.precision,
                nodes=engine.nodes or 1,
                strategy=engine.strategy,
            )
            device = fabric.device.type
            resolve_performance(engine, fabric)
        except UserError as error:
            yield Finding("error", str(error))
    threads = engine.threads or torch.get_num_threads()
    yield Finding(
        "note",
        f"Python {platform.python_version()}, torch {torch.__version__}, torchvision "
        f"{torchvision.__version__}; device {device}, CPU threads: {threads}",
    )
    for warning in caught_warnings:
        if not issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning):
            yield Finding("warning", f"engine: {' '.join(str(warning.message).split())}")
