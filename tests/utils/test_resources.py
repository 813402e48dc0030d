import os
from pathlib import Path

import pytest

from ducats.utils import resources
from ducats.utils.resources import available_cores, free_disk_gb, free_memory_gb, peak_memory_bytes

GB = 2**30


def test_free_disk_and_memory(tmp_path: Path) -> None:
    assert free_disk_gb(tmp_path / "not/there") > 0
    free = free_memory_gb()
    assert free is None or 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB


def test_peak_memory_of_this_process() -> None:
    peak = peak_memory_bytes()  # Python alone takes some megabytes
    assert peak is None or 2**22 < peak <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_peak_memory_from_proc(system: Path) -> None:
    (system / "proc/self/status").write_text("Name:\tpython\nVmPeak:\t 99 kB\nVmHWM:\t    3 kB\n")
    assert peak_memory_bytes() == 3072


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 64 GB of free memory; tests may add files to it."""
    monkeypatch.setattr(resources, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(resources, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {99 * 2**20} kB\nMemAvailable: {64 * 2**20} kB\n")
    return tmp_path


def group(folder: Path, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")


def test_free_memory_without_a_cgroup(system: Path) -> None:
    assert free_memory_gb() == 64


def test_limits_of_ancestor_cgroups_count(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/jobs/7/step\n")
    group(system / "groups/jobs/7/step", "max", GB, 0)
    group(system / "groups/jobs/7", str(8 * GB), 5 * GB, 2 * GB)
    group(system / "groups/jobs", str(100 * GB), 5 * GB, 0)
    assert free_memory_gb() == 5  # 8, less the 3 that are not reclaimable


def test_a_container_with_the_path_of_the_host(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("5:cpu:/\n4:memory:/docker/abc\n")
    root = system / "groups/memory"
    root.mkdir(parents=True)
    (root / "memory.limit_in_bytes").write_text(str(6 * GB))
    (root / "memory.usage_in_bytes").write_text(str(4 * GB))
    (root / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {GB}\n")
    assert free_memory_gb() == 3


def test_a_full_cgroup(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/\n")
    group(system / "groups", str(GB), 2 * GB, 0)
    assert free_memory_gb() == 0


def test_unknown_memory(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "proc/meminfo").unlink()
    monkeypatch.delattr(os, "sysconf")
    assert free_memory_gb() is None


def test_available_cores_respect_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert resources.available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert resources.available_cores() == 1


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/docker/7", {"docker/7/cpu.max": "250000 100000", "docker/cpu.max": "max 100000"}, 3),
        ("0::/docker/7", {"docker/7/cpu.max": "max 100000"}, 8),
        ("0::/docker/7", {"cpu.max": "5000 100000"}, 1),  # the path of the host
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("", {}, 8),
    ],
)
def test_cores_are_limited_by_the_cgroup(
    system: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    (system / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        (system / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (system / "groups" / name).write_text(f"{content}\n")
    assert available_cores() == expected
