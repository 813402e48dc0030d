"""One of two processes of a run is killed, again and again: does the run end, and go on alike?

    python benchmarks/killing.py [--runs 3] [--launcher own|torchrun] [--json FILE]

Each run is killed four times: in an epoch, while the pool is scored, and while a file is half written, the
first and the second process in turn, by SIGKILL. Each time all processes must be gone within seconds, with an
exit code that is not 0 and no more than one sentence of ours, and the same command goes on. In the end the
run must have the labels and the weights, bit for bit, of a run of two processes that nobody disturbed. FILE
keeps the results of both launchers. Needs Linux.
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

from ducats.rundir import RunDir

SETTINGS = (
    "data={name: toy, knobs: {pool: 6000}}",  # so that scoring takes a while
    "model={name: small_cnn, knobs: {width: 8, features: 32}}",
    "train={epochs: 10, steps_per_epoch: 20, batch_size: 16, lr: 0.02}",
    "ask={after: [1, 3, 5, 7], budget: 40}",
    "views={source: {crop: random, pad: 1}, unlabelled: {crop: none}}",
    "views={scoring: {crop: none}, test: {crop: none}}",
)
MOMENTS = ("in an epoch", "while scoring", "while writing")
PATIENCE = 60.0  # seconds after which those that are left would be said to hang


@dataclass
class Kill:
    """What became of a run when one of its processes was killed."""

    victim: int
    moment: str
    found: str  # what the folder says of the moment
    code: int  # of the command
    seconds: float  # until all processes were gone
    sentences: int

    @property
    def clean(self) -> bool:
        """Whether it ended as it should."""
        return self.code != 0 and self.seconds < PATIENCE and self.sentences <= 1


def command(folder: Path, launcher: str) -> list[str]:
    """What starts two processes."""
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
    """The numbers of a run's processes, in order."""
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
    """Whether a process is there, and not just its name."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_it(happened: Callable[[], bool], run: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait for something that a run does."""
    while not happened():
        if run.poll() is not None:
            said = (folder.parent / "stderr.txt").read_text()[-2000:]
            raise RuntimeError(f"exit code {run.returncode} before it happened: {said}")
        time.sleep(0.001)


def has(folder: Path, kind: str, count: int) -> bool:
    """Whether a run has so many records of a kind."""
    return RunDir(folder).metrics.exists() and len(RunDir(folder).lines(kind)) >= count


def writes(folder: Path) -> bool:
    """Whether a file is half written."""
    return any(folder.rglob(".*.part"))


def found(folder: Path) -> str:
    """What the folder says of the moment of its run's end."""
    asked, answered = (len(list((folder / name).glob("round-*.npz"))) for name in ("requests", "labels"))
    if writes(folder):
        return "half a file"
    if folder.exists() and asked < len(RunDir(folder).lines("stage")):
        return "measured, not asked"
    return "asked, not answered" if asked > answered else "in an epoch"


def finish(folder: Path, launcher: str) -> None:
    """Give the command, to its end."""
    run = begin(folder, launcher)
    if run.wait() != 0:
        said = (folder.parent / "stderr.txt").read_text()[-2000:]
        raise RuntimeError(f"exit code {run.returncode}: {said}")


def left(folder: Path) -> tuple[object, bytes]:
    """A run's labels and weights."""
    return list(RunDir(folder).bought().entries()), (folder / "model.safetensors").read_bytes()


def kill(folder: Path, launcher: str, victim: int, moment: str, number: int, luck: random.Random) -> Kill:
    """Kill a process of a run.

    Args:
        folder: the run's.
        launcher: who starts the processes.
        victim: the rank.
        moment: one of `MOMENTS`.
        number: how often the run was killed before: it asks after each second epoch, and is killed in the
            first two epochs, in the next two, and so on.
        luck: when in an epoch, or which write.
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
    """Kill runs and go on with them; what came of it."""
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
    """Kill, go on, count."""
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
