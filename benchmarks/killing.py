"""Kill one of two processes of a run repeatedly; check clean exits and identical results after resuming.

    python benchmarks/killing.py [--runs 3] [--launcher own|torchrun] [--json FILE]

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

from ducats.run_folder import RunFolder

SETTINGS = (
    "data={name: toy, params: {n_pool: 6000}}",  # large enough that scoring takes a while
    "model={name: small_cnn, params: {width: 8, features: 32}}",
    "train={epochs: 10, steps_per_epoch: 20, batch_size: 16, lr: 0.02}",
    "acquisition={after_epochs: [1, 3, 5, 7], budget: 40}",
    "views={source: {crop: random, pad: 1}, unlabelled: {crop: none}}",
    "views={scoring: {crop: none}, test: {crop: none}}",
)
MOMENTS = ("in an epoch", "while scoring", "while writing")
PATIENCE = 60.0  # seconds after which remaining processes count as hanging


@dataclass
class Kill:
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
        return self.code != 0 and self.seconds < PATIENCE and self.sentences <= 1


def command(folder: Path, launcher: str) -> list[str]:
    """Return the command that starts two processes."""
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    run = ["-m", "ducats", "run", "--method", "duc", "--device", "cpu", *settings, "--out", str(folder)]
    if launcher == "own":
        return [sys.executable, *run, "--devices", "2"]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *run]


def begin(folder: Path, launcher: str) -> "subprocess.Popen[str]":
    """Start a run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "stderr.txt").open("w") as file:
        return subprocess.Popen(
            command(folder, launcher),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
            text=True,
        )


def ranks(first: int, launcher: str) -> list[int]:
    """Return the process ids of a run, ordered by rank."""
    children = [int(n) for n in Path(f"/proc/{first}/task/{first}/children").read_text().split()]
    if launcher == "own":
        return [first, *children]
    places = {}
    for child in children:
        for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"RANK="):
                places[int(line[5:])] = child
    return [places[rank] for rank in sorted(places)]


def alive(number: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_it(happened: Callable[[], bool], run: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait until a condition holds; raise if the run exits first."""
    while not happened():
        if run.poll() is not None:
            said = (folder.parent / "stderr.txt").read_text()[-2000:]
            raise RuntimeError(f"exit code {run.returncode} before the expected event: {said}")
        time.sleep(0.001)


def has(folder: Path, kind: str, count: int) -> bool:
    """Return whether a run has at least ``count`` records of a kind."""
    return RunFolder(folder).metrics_path.exists() and len(RunFolder(folder).read_records(kind)) >= count


def writes(folder: Path) -> bool:
    """Return whether the folder contains a partially written file."""
    return any(folder.rglob(".*.part"))


def found(folder: Path) -> str:
    """Infer from the run folder when the run was killed."""
    asked, answered = (len(list((folder / name).glob("round-*.npz"))) for name in ("requests", "labels"))
    if writes(folder):
        return "half a file"
    if folder.exists() and asked < len(RunFolder(folder).read_records("stage")):
        return "measured, not asked"
    return "asked, not answered" if asked > answered else "in an epoch"


def finish(folder: Path, launcher: str) -> None:
    """Run the command until it finishes."""
    run = begin(folder, launcher)
    if run.wait() != 0:
        said = (folder.parent / "stderr.txt").read_text()[-2000:]
        raise RuntimeError(f"exit code {run.returncode}: {said}")


def left(folder: Path) -> tuple[object, bytes]:
    """Return the labels and weights of a run."""
    return list(RunFolder(folder).load_ledger().entries()), (folder / "model.safetensors").read_bytes()


def kill(folder: Path, launcher: str, victim: int, moment: str, number: int, luck: random.Random) -> Kill:
    """Start or resume a run and kill one of its processes.

    The run queries labels after every second epoch and is killed once in every two epochs; ``number`` counts
    the earlier kills. ``victim`` is a rank, ``moment`` one of `KILL_TIMES`; ``luck`` varies the exact time.
    """
    run = begin(folder, launcher)
    wait = partial(await_it, run=run, folder=folder)
    wait(lambda: has(folder, "epoch", 2 * number + 1))
    if moment == "in an epoch":
        wait(lambda: has(folder, "epoch", 2 * number + 2))
        time.sleep(luck.uniform(0.0, 0.3))
    elif moment == "while scoring":
        wait(lambda: has(folder, "stage", number + 1))
    else:
        time.sleep(luck.uniform(0.0, 0.3))
        wait(lambda: writes(folder))
    numbers = ranks(run.pid, launcher)
    os.kill(numbers[victim], signal.SIGKILL)
    killed = time.monotonic()
    while any(map(alive, {*numbers, run.pid})) and time.monotonic() - killed < PATIENCE:
        run.poll()
        time.sleep(0.01)
    seconds = time.monotonic() - killed
    for one in filter(alive, {*numbers, run.pid}):
        os.kill(one, signal.SIGKILL)
    code, said = run.wait(), (folder.parent / "stderr.txt").read_text()
    return Kill(victim, moment, found(folder), code, round(seconds, 2), said.count("ducats: "))


def measure(runs: int, launcher: str, base: Path) -> dict[str, Any]:
    """Kill and resume several runs; return the statistics."""
    finish(base / "whole" / "run", launcher)
    whole, luck = left(base / "whole" / "run"), random.Random(0)
    kills, alike = list[Kill](), 0
    for number in range(runs):
        folder = base / str(number) / "run"
        for place in range(4):
            moment = MOMENTS[(number + place) % 3]
            kills.append(kill(folder, launcher, (number + place) % 2, moment, place, luck))
            print(json.dumps({"run": number, **asdict(kills[-1]), "clean": kills[-1].clean}), flush=True)
        finish(folder, launcher)
        alike += left(folder) == whole and not writes(folder)
        print(f"{alike} of {number + 1} runs with the same labels and weights", flush=True)
    return {
        "kills": len(kills),
        "clean": sum(one.clean for one in kills),
        "slowest_end_seconds": max(one.seconds for one in kills),
        "codes": dict(Counter(str(one.code) for one in kills)),
        "found": dict(Counter(f"{one.moment}: {one.found}" for one in kills)),
        "runs": runs,
        "runs_alike": alike,
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
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps({**known, options.launcher: result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
