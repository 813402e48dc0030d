"""Cores, free memory, peak memory and free disk space."""

import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # not available on Windows
    resource = None  # type: ignore[assignment]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return the number of cores this process may use; in a container or job, fewer than the machine has.

    It does not depend on the load: results may depend on the number of threads.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _cgroup_cores())]))


def free_disk_gb(folder: Path) -> float:
    """Return the free gigabytes on the disk of a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def free_memory_gb() -> float | None:
    """Return the gigabytes that this process can still allocate; None if unknown."""
    free = [found for found in (_system_free_gb(), *_cgroup_free_gb()) if found is not None]
    return max(0.0, min(free)) if free else None


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process in bytes; None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return None
    # A fallback: in a child process this may be the parent's peak.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _system_free_gb() -> float | None:
    """Return the machine's free memory."""
    # SC_AVPHYS_PAGES does not count the file cache, which can be reclaimed and takes most of the memory once
    # all images have been read.
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return None


def _cgroup_cores() -> Iterator[float]:
    """Yield the CPU time per second that each cgroup of this process may use, where it has a limit."""
    with suppress(OSError, ValueError):
        for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if not kinds:
                yield from _group_cores(_CGROUPS, group, "cpu.max")
            elif "cpu" in kinds.split(","):
                yield from _group_cores(_CGROUPS / "cpu", group, "cpu.cfs_quota_us", "cpu.cfs_period_us")


def _group_cores(root: Path, group: str, *names: str) -> Iterator[float]:
    """Yield quota / period of a cgroup and its ancestors; both are in one file or in two."""
    here = root / group.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            return
        with suppress(OSError, ValueError):  # no file, or no limit: "max" or -1
            text = " ".join((folder / name).read_text(encoding="ascii") for name in names)
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:
                yield quota / period


def _cgroup_free_gb() -> Iterator[float]:
    """Yield the free memory of each cgroup of this process; beyond it a container or job is killed."""
    with suppress(OSError, ValueError):
        for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if not kinds:
                yield from _group_free_gb(_CGROUPS, group, "memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _group_free_gb(_CGROUPS / "memory", group, *names)


def _group_free_gb(root: Path, group: str, limit: str, usage: str, cached: str) -> Iterator[float]:
    """Yield the free memory of a cgroup and its ancestors, where they have a limit."""
    here = root / group.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            return
        # Without a limit the file contains "max", and the root group has no file. Inside a container the path
        # may be the host's, and only the root exists.
        with suppress(OSError, ValueError):
            limit_bytes, used_bytes = (
                int((folder / name).read_text(encoding="ascii")) for name in (limit, usage)
            )
            for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
                name, value = line.split()
                used_bytes -= int(value) if name == cached else 0  # reclaimable file cache
            yield (limit_bytes - used_bytes) / 2**30
