"""How much room there is, in memory and on disk."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # no such thing on Windows
    resource = None  # type: ignore[assignment]

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


def free_disk_gb(folder: Path) -> float:
    """Gigabytes left where this folder is, or would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free / 2**30


def free_memory_gb() -> float | None:
    """Gigabytes that this process may still take; None if the system does not say."""
    free = [found for found in (_system(), *_groups()) if found is not None]
    return max(0.0, min(free)) if free else None


def most_memory() -> int | None:
    """The most bytes that this process ever held; None if the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return None
    # Where a process was started by another, this may be that one's: so it comes second.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _system() -> float | None:
    """What the machine has left."""
    # SC_AVPHYS_PAGES leaves out what the system would give back from its file cache, which is most of the
    # memory once every image was read.
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return None


def _groups() -> Iterator[float]:
    """What each control group leaves that holds this process: a container or a job is killed beyond it."""
    with suppress(OSError, ValueError):
        for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, own = line.split(":", 2)
            if not kinds:
                yield from _left(_GROUPS, own, "memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _left(_GROUPS / "memory", own, *names)


def _left(root: Path, own: str, limit: str, usage: str, cached: str) -> Iterator[float]:
    """What is left in a group and in those above it, where they have a limit."""
    here = root / own.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            return
        # Without a limit the file says "max", and the outermost group has none; inside a container the
        # path may be the host's, and only the root is there.
        with suppress(OSError, ValueError):
            most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
            for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
                name, value = line.split()
                used -= int(value) if name == cached else 0  # files that the system would let go
            yield (most - used) / 2**30
