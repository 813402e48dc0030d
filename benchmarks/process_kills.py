"""Kill one of two processes of a run repeatedly; check clean exits and identical results after resuming.

    python benchmarks/process_kills.py [--runs 3] [--launcher own|torchrun] [--json FILE]

Each run is killed four times by SIGKILL: during an epoch, while the pool is scored, and while a file is half
written. The two processes are killed in turn. After each kill all processes must exit within seconds, with a
non-zero exit code and at most one message of ducats. The same command then resumes the run. The final labels
and weights must be bit-identical to those of an undisturbed run of two processes. FILE collects the results
of both launchers. Needs Linux.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ducats.ledger import load_ledger
from ducats.runfolder.run_folder import RunFolder

SETTINGS = (
    "data={name: toy, params: {n_pool: 6000}}",  # large enough that scoring takes a while
    "model={name: small_cnn, params: {width: 8, features: 32}}",
    "train={epochs: 10, steps_per_epoch: 20, batch_size: 16, lr: 0.02}",
    "acquisition={after_epochs: [1, 3, 5, 7], budget: 40}",
    "views.source={crop: random, pad: 1, size: null, flip: 0, jitter: [0, 0, 0, 0]}",
    "views={unlabelled: {crop: none, size: null}, scoring: {crop: none, size: null}}",
    "views.test={crop: none, size: null}",
)
KILL_MOMENTS = ("in an epoch", "while scoring", "while writing")
EXIT_TIMEOUT_SECONDS = 60.0  # seconds after which remaining processes count as hanging


@dataclass
class KillOutcome:
    """Outcome of a run after one of its processes was killed."""

    victim: int
    moment: str
    found: str  # state of the run folder after the kill
    code: int  # exit code of the command
    seconds: float  # until all processes had exited
    sentences: int

    @property
    def clean(self) -> bool:
        """Whether the run ended in time, with an error code and at most one message."""
        return self.code != 0 and self.seconds < EXIT_TIMEOUT_SECONDS and self.sentences <= 1


def run_command(folder: Path, launcher: str) -> list[str]:
    """Return the command that starts two processes."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run = ["-m", "ducats", "run", "--method", "duc", "--device", "cpu", *settings, "--out", str(folder)]
    if launcher == "own":
        return [sys.executable, *run, "--devices", "2"]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *run]


def start_run(folder: Path, launcher: str) -> "subprocess.Popen[str]":
    """Start a run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "stderr.txt").open("w") as file:
        return subprocess.Popen(
            run_command(folder, launcher),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
            text=True,
        )


def rank_pids(launcher_pid: int) -> list[int]:
    """Return the process ids of a run, ordered by rank."""
    children = [
        int(n) for n in Path(f"/proc/{launcher_pid}/task/{launcher_pid}/children").read_text().split()
    ]
    pids = {}
    for child in children:
        for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"LOCAL_RANK="):
                pids[int(line.removeprefix(b"LOCAL_RANK="))] = child
    return [pids[rank] for rank in sorted(pids)]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], run: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait until a condition holds; raise if the run exits first."""
    while not condition():
        if run.poll() is not None:
            stderr = (folder.parent / "stderr.txt").read_text()[-2000:]
            raise RuntimeError(f"exit code {run.returncode} before the expected event: {stderr}")
        time.sleep(0.001)


def has_records(folder: Path, kind: str, count: int) -> bool:
    """Return whether a run has at least ``count`` records of a kind."""
    return RunFolder(folder).metrics_path.exists() and len(RunFolder(folder).read_records(kind)) >= count


def has_partial_file(folder: Path) -> bool:
    """Return whether the folder contains a partially written file."""
    return any(folder.rglob(".*.part"))


def state_after_kill(folder: Path) -> str:
    """Infer from the run folder when the run was killed."""
    n_requests, n_answered = (
        len(list((folder / name).glob("round-*.npz"))) for name in ("requests", "labels")
    )
    if has_partial_file(folder):
        return "half a file"
    if folder.exists() and n_requests < len(RunFolder(folder).read_records("stage")):
        return "evaluated, not queried"
    return "queried, not labelled" if n_requests > n_answered else "in an epoch"


def run_to_end(folder: Path, launcher: str) -> None:
    """Run the command until it finishes."""
    run = start_run(folder, launcher)
    if run.wait() != 0:
        stderr = (folder.parent / "stderr.txt").read_text()[-2000:]
        raise RuntimeError(f"exit code {run.returncode}: {stderr}")


def labels_and_weights(folder: Path) -> tuple[object, bytes]:
    """Return the labels and weights of a run."""
    return list(load_ledger(RunFolder(folder)).entries()), (folder / "model.safetensors").read_bytes()


def kill_process(
    folder: Path, launcher: str, victim: int, moment: str, n_earlier_kills: int, rng: random.Random
) -> KillOutcome:
    """Start or resume a run and kill one of its processes.

    The run queries labels after every second epoch and is killed once in every two epochs;
    ``n_earlier_kills`` counts the earlier kills. ``victim`` is a rank, ``moment`` one of `KILL_MOMENTS`;
    ``rng`` varies the exact time.
    """
    run = start_run(folder, launcher)
    wait = partial(wait_until, run=run, folder=folder)
    wait(lambda: has_records(folder, "epoch", 2 * n_earlier_kills + 1))
    if moment == "in an epoch":
        wait(lambda: has_records(folder, "epoch", 2 * n_earlier_kills + 2))
        time.sleep(rng.uniform(0.0, 0.3))
    elif moment == "while scoring":
        wait(lambda: has_records(folder, "stage", n_earlier_kills + 1))
    else:
        time.sleep(rng.uniform(0.0, 0.3))
        wait(lambda: has_partial_file(folder))
    pids = rank_pids(run.pid)
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    while any(map(is_alive, {*pids, run.pid})) and time.monotonic() - killed < EXIT_TIMEOUT_SECONDS:
        run.poll()
        time.sleep(0.01)
    seconds = time.monotonic() - killed
    for pid in filter(is_alive, {*pids, run.pid}):
        os.kill(pid, signal.SIGKILL)
    code, stderr = run.wait(), (folder.parent / "stderr.txt").read_text()
    return KillOutcome(
        victim, moment, state_after_kill(folder), code, round(seconds, 2), stderr.count("ducats: ")
    )


def measure(runs: int, launcher: str, base: Path) -> dict[str, Any]:
    """Kill and resume several runs; return the statistics."""
    run_to_end(base / "whole" / "run", launcher)
    reference, rng = labels_and_weights(base / "whole" / "run"), random.Random(0)
    kills, n_identical = list[KillOutcome](), 0
    for run_index in range(runs):
        folder = base / str(run_index) / "run"
        for kill_index in range(4):
            moment = KILL_MOMENTS[(run_index + kill_index) % 3]
            kills.append(
                kill_process(folder, launcher, (run_index + kill_index) % 2, moment, kill_index, rng)
            )
            print(json.dumps({"run": run_index, **asdict(kills[-1]), "clean": kills[-1].clean}), flush=True)
        run_to_end(folder, launcher)
        n_identical += labels_and_weights(folder) == reference and not has_partial_file(folder)
        print(f"{n_identical} of {run_index + 1} runs with the same labels and weights", flush=True)
    return {
        "kills": len(kills),
        "clean": sum(one.clean for one in kills),
        "slowest_end_seconds": max(one.seconds for one in kills),
        "codes": dict(Counter(str(one.code) for one in kills)),
        "found": dict(Counter(f"{one.moment}: {one.found}" for one in kills)),
        "runs": runs,
        "runs_alike": n_identical,
        "each": [asdict(one) for one in kills],
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print the result, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--launcher", choices=("own", "torchrun"), default="own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        result = measure(options.runs, options.launcher, Path(name))
    print(json.dumps({name: value for name, value in result.items() if name != "each"}, indent=1))
    if options.json:
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**earlier, options.launcher: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
