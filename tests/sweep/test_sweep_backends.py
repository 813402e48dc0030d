"""Sweeps on other machines: a real Ray cluster of two nodes, submitit's local executor, a simulated SLURM."""

import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import fake_slurm
from child_process import has_ended, is_unlocked, wait_until
from commands import ducats
from ducats.sweep import (
    BackendOptions,
    SweepFilter,
    expand_sweep,
    open_backend,
    ray_backend,
    read_sweep,
    run_sweep,
    slurm_backend,
)
from ducats.sweep.jobs import JobEnd, SweepJob, write_job
from ducats.sweep.slurm_backend import SlurmSweepBackend
from ducats.utils.cluster import TaskLost, TaskResult, slurm
from ducats.utils.errors import UserError
from ray_clusters import two_nodes
from sweep_helpers import make_runs, write_sweep
from synthetic_pools import write_file

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
# A network that records its process and parent process, and waits as long as the file `hold` exists.
WAITING_NETWORK = """
import os, time
from pathlib import Path
from torch import nn

FOLDER = Path({folder!r})

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.head = nn.Linear(channels * 64, classes)
        self.parent = os.getppid()

    def forward(self, images):
        mark = FOLDER / "at" / str(os.getpid())
        if not mark.exists():
            mark.with_suffix(".part").write_text(str(self.parent))
            mark.with_suffix(".part").rename(mark)
        while (FOLDER / "hold").exists():
            time.sleep(0.01)
        return self.head(images.flatten(1))
"""
BROKEN_METHOD = {"name": "broken", "config": "random", "settings": "data.params.n_pool=2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a custom network that all new processes can import."""
    folder = tmp_path_factory.mktemp("backends")
    write_file(folder / "modules" / "waiting_net.py", WAITING_NETWORK.format(folder=str(folder)).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "modules")
        patch.setenv("PYTHONPATH", str(folder / "modules"), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PATH", f"{folder / 'slurm'}{os.pathsep}{os.environ['PATH']}")
        yield folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture
def hold_file(folder: Path) -> Iterator[Path]:
    """A file; while it exists, runs wait before their first step."""
    (folder / "at").mkdir(exist_ok=True)
    for mark in (folder / "at").iterdir():
        mark.unlink()
    (folder / "hold").touch()
    yield folder / "hold"
    (folder / "hold").unlink(missing_ok=True)


def sweep_file(path: Path, *methods: object) -> Path:
    waiting = [
        {"name": name, "config": name, "settings": ["model.name=waiting_net:Net", "model.params={}"]}
        for name in methods
        if isinstance(name, str)
    ]
    return write_sweep(path, methods=[*(each for each in methods if not isinstance(each, str)), *waiting])


def waiting_processes(folder: Path) -> dict[int, int]:
    """Return the processes of the runs that waited, with their parents."""
    marks = [mark for mark in (folder / "at").iterdir() if not mark.suffix]
    return {int(mark.name): int(mark.read_text()) for mark in marks}


@contextmanager
def held_until_done(hold_file: Path, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread and let the runs wait until it returns."""
    failure = list[BaseException]()

    def work() -> None:
        try:
            act()
        except BaseException as error:
            failure.append(error)
        finally:
            hold_file.unlink()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failure


# ---- Ray


@needs_proc
def test_ray_runs_end_with_the_command_and_survive_a_lost_node(
    folder: Path, cluster: Any, hold_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = sweep_file(tmp_path / "s.yaml", "random", "entropy"), tmp_path / "out"
    command = ("sweep", file, "--backend", "ray", "--ray-address", cluster.address, "--out", out)
    # A new interpreter: gRPC, which the cluster uses in this process, does not survive a fork.
    first_command = [sys.executable, "-m", "ducats", *map(str, command), "--methods", "random"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(first_command, stdout=log) as first:
        try:
            wait_until(lambda: len(waiting_processes(folder)) == 1)
        finally:
            first.kill()
    (run,) = out.glob("toy-random-*")
    wait_until(lambda: is_unlocked(run / ".lock"))

    def lose_a_node() -> None:
        wait_until(lambda: len(waiting_processes(folder)) == 3)  # each node has a run
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: sum(map(has_ended, waiting_processes(folder))) == 2)

    with held_until_done(hold_file, lose_a_node):
        assert ducats(*command) == 0
    assert "2 runs: 2 done" in capsys.readouterr().out
    assert len(waiting_processes(folder)) == 4  # one more process for each lost run
    finished = {path.parent.name.split("-")[1] for path in out.glob("*/model.safetensors")}
    assert finished == {"random", "entropy"}


def test_reasons_of_lost_ray_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = [
        TaskResult("a", None, TaskLost("its worker was killed, 3 times in a row")),
        TaskResult("b", None, UserError("the node x has torch 1.0")),
        TaskResult("c", None, OSError("no disk\nat all")),
        TaskResult("d", 1, None),
    ]
    monkeypatch.setattr(ray_backend, "TaskPool", lambda *_, **__: SimpleNamespace(wait=lambda _: ends))
    backend = ray_backend.RaySweepBackend(cpus_per_run=1, use_gpu=False, max_runs=None)
    silent: Any = SimpleNamespace(last_line=lambda: "", folder=tmp_path / "out" / "run")
    backend._running = {name: SimpleNamespace(name=name, **vars(silent)) for name in "abcd"}  # type: ignore[misc]
    assert backend.pop_finished() == [
        JobEnd("a", 1, "its worker was killed, 3 times in a row"),
        JobEnd("b", 1, "the node x has torch 1.0"),
        JobEnd("c", 1, "OSError: no disk"),
        JobEnd("d", 1, f"exit code 1 with an empty log; check that all nodes share {tmp_path / 'out'}"),
    ]


def test_time_limit_of_a_sweep(tmp_path: Path) -> None:
    class Never:
        poll_seconds, stopped = 0.01, False

        def free_slots(self) -> int:
            return 1

        def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
            return ["nowhere" for _ in jobs]

        def pop_finished(self) -> list[JobEnd]:
            return []

        def stop(self) -> str:
            self.stopped = True
            return "they continue"

    backend, text = Never(), io.StringIO()
    sweep_runs = make_runs(tmp_path, methods=["random", "duc"])
    outcome = run_sweep(sweep_runs, tmp_path / "out", backend, Console(file=text, width=200), time_limit=0.05)
    assert (sorted(outcome.unfinished), outcome.exit_code) == (sorted(run.name for run in sweep_runs), 1)
    assert backend.stopped
    assert (
        "they continue\n2 runs: 0 done, 2 unfinished at the time limit; run the same command again to resume"
        in text.getvalue()
    )


# ---- SLURM


@needs_proc
def test_jobs_continue_without_the_command_and_are_requeued_after_a_signal(
    folder: Path,
    hold_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("submitit", reason="needs ducats[slurm]")
    jobs_folder = fake_slurm.install_commands(folder / "slurm")
    file, out = sweep_file(tmp_path / "s.yaml", BROKEN_METHOD, "random"), tmp_path / "out"
    settings = ("time=0:10:00", "partition=toy", "reservation=ours")
    sweep_runs = expand_sweep(read_sweep(file), SweepFilter(), "cpu")
    with open_backend(BackendOptions("slurm", workers=2, slurm=settings), out, "s") as opened:
        jobs = [write_job(run, out) for run in sweep_runs]
        jobs[0].config_path.unlink()  # this job fails at once
        opened.backend.submit(jobs)
    # From here on the jobs are not tracked, as after a kill.
    wait_until(lambda: len(waiting_processes(folder)) == 1 and (jobs_folder / "100_0.code").exists())
    ((run, parent),) = waiting_processes(folder).items()
    os.kill(parent, signal.SIGUSR2)  # as SLURM does before a time limit or preemption
    wait_until(lambda: len(waiting_processes(folder)) == 2)
    assert has_ended(run)

    monkeypatch.setattr(SlurmSweepBackend, "poll_seconds", 0.2)
    with held_until_done(hold_file, lambda: wait_until((jobs_folder / "101.sbatch").exists)):
        command = ("sweep", file, "--backend", "slurm", "--workers", "2", "--out", out, "--slurm", *settings)
        assert ducats(*command) == 1
    output = capsys.readouterr().out
    assert "2 runs: 1 done, 1 failed; run the same command again to retry" in output
    assert "the pool has 2 images: lower acquisition.budget (log: " in output
    scripts = [path.read_text() for path in sorted(jobs_folder.glob("*.sbatch"))]
    assert len(scripts) == 2  # the active run was not submitted again
    for option in ("--array=0-1%2", "--partition=toy", "--time=10", "--reservation=ours"):
        assert f"#SBATCH {option}\n" in scripts[0]
    assert "--array" not in scripts[1]
    job_ids = {
        name.split("-")[1]: job for name, job in json.loads((out / "slurm" / "jobs.json").read_text()).items()
    }
    assert job_ids == {"broken": "101", "random": "100_1"}
    assert len(waiting_processes(folder)) == 2


def test_local_executor_limits_the_parallel_jobs(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit", reason="needs ducats[slurm]")
    executor = submitit.AutoExecutor(tmp_path / "slurm", cluster="local")
    executor.update_parameters(timeout_min=5)
    backend = SlurmSweepBackend(executor, tmp_path, max_jobs=2)
    commands = {"good": ["--version"], "bad": ["run", "--nonsense"], "late": ["--version"]}
    runs: list[Any] = [
        SimpleNamespace(
            name=name, arguments=arguments, log_path=tmp_path / f"{name}.txt", lock_path=tmp_path / name
        )
        for name, arguments in commands.items()
    ]
    assert backend.free_slots() == 2
    assert [location.split()[0] for location in backend.submit(runs[:2])] == ["job", "job"]
    assert backend.free_slots() == 0
    ended = list[JobEnd]()

    def all_ended() -> bool:
        ended.extend(backend.pop_finished())
        return len(ended) == 2

    wait_until(all_ended)
    assert sorted(ended) == [JobEnd("bad", 2), JobEnd("good", 0)]
    assert (tmp_path / "good.txt").read_text().strip() == metadata.version("ducats")
    assert backend.free_slots() == 2
    backend.submit(runs[2:])
    assert backend.stop() == ""
    assert all(job.done() for job in backend._jobs.values())


def test_stop_leaves_queued_jobs_and_explains_how_to_cancel_them(tmp_path: Path) -> None:
    backend = SlurmSweepBackend(None, tmp_path)
    assert backend.stop() == ""
    backend._jobs = {"a": SimpleNamespace(job_id="7_0"), "b": SimpleNamespace(job_id="7_1")}
    assert "`scancel 7` to cancel" in backend.stop()
    assert (backend.free_slots(), SlurmSweepBackend(None, tmp_path).free_slots()) == (0, 1000)


def test_job_without_a_result_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, paths = (
        SlurmSweepBackend(None, tmp_path),
        SimpleNamespace(result_pickle=tmp_path / "r", stderr=tmp_path / "e"),
    )
    backend._jobs = {
        "a": SimpleNamespace(job_id="7", done=lambda **_: True, state="OUT_OF_MEMORY", paths=paths)
    }
    assert backend.pop_finished() == []  # the result may arrive late
    monkeypatch.setattr(slurm_backend, "_RESULT_TIMEOUT_SECONDS", -1.0)
    assert backend.pop_finished() == [
        JobEnd("a", 1, f"job 7 ended with state OUT_OF_MEMORY; see {tmp_path / 'e'}")
    ]


# ---- invalid options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BackendOptions("rya"), "--backend must be one of local, ray, slurm, not rya"),
        (BackendOptions(ray_address="auto"), "--ray-address needs --backend ray"),
        (BackendOptions("slurm", timeout="1h"), "--timeout needs --backend ray"),
        (BackendOptions("ray", slurm=("time=1",)), "--slurm needs --backend slurm"),
        (BackendOptions("ray", devices="cuda:1"), "--devices must be cpu, cuda or auto with --backend ray"),
        (BackendOptions("ray", cpus_per_run=0), "--cpus-per-run must be at least 1"),
        (BackendOptions("ray", timeout="soon"), "--timeout soon is not a duration"),
    ],
)
def test_conflicting_options(options: BackendOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message), open_backend(options, tmp_path, "s"):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "needs a time limit"),
        (["time=soon"], "is not a time"),
        (["time=0"], "is not a time"),
        (["time"], "is not a key=value"),
        (["time=5", "nodes=2"], "one task on one node"),
        (["time=5", "array=0-9"], "the sweep sets array itself"),
    ],
)
def test_invalid_slurm_settings(
    settings: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="needs ducats[slurm]")
    monkeypatch.setattr(shutil, "which", lambda program: program)
    with pytest.raises(UserError, match=message):
        slurm.make_executor(tmp_path, settings, name="s", max_jobs=None)


def test_slurm_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    if importlib.util.find_spec("submitit") is not None:
        with pytest.raises(UserError, match="needs sbatch and srun on PATH"):
            slurm.make_executor(tmp_path, ["time=5"], name="s", max_jobs=None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'ducats\[slurm\]'"):
        slurm.make_executor(tmp_path, ["time=5"], name="s", max_jobs=None)
