"""One of two processes of a run is killed at a random moment, again and again: does it end, and go on alike?

    python benchmarks/killing.py [--times 10] [--launcher own|torchrun] [--json FILE]

Each time the first or the second process gets SIGKILL. Then all processes must be gone within seconds, with
an exit code that is not 0 and no more than one sentence of ours; and the same command must end with the
labels and the weights, bit for bit, of a run of two processes that nobody disturbed. Needs Linux.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ducats.rundir import RunDir

SETTINGS = (
    "data.name=toy",
    "model={name: small_cnn, knobs: {width: 8, features: 32}}",
    "train={epochs: 12, steps_per_epoch: 20, batch_size: 16, lr: 0.02}",
    "ask={after: [1, 3, 5, 7], budget: 40}",
    "views={source: {crop: random, pad: 1}, unlabelled: {crop: none}}",
    "views={scoring: {crop: none}, test: {crop: none}}",
)
PATIENCE = 60.0  # seconds after which those that are left would be said to hang


@dataclass
class Trial:
    """What became of one run."""

    victim: int
    after: float  # seconds since the run had begun its folder
    phase: str  # what the folder's newest file was
    code: int  # of the command
    seconds: float  # until all processes were gone
    sentences: int
    alike: bool  # after the same command was given once more

    @property
    def well(self) -> bool:
        """Whether all went as it should."""
        return self.code != 0 and self.seconds < PATIENCE and self.sentences <= 1 and self.alike


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


def newest(folder: Path) -> str:
    """The file that a run has written last."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return max(found, key=lambda p: p.stat().st_mtime).relative_to(folder).as_posix() if found else ""


def await_file(path: Path, run: "subprocess.Popen[str]") -> None:
    """Wait until a run has written a file."""
    while not path.exists():
        if run.poll():
            raise RuntimeError((path.parent.parent / "stderr.txt").read_text()[-2000:])
        time.sleep(0.005)


def finish(folder: Path, launcher: str) -> None:
    """Give the command, to its end."""
    run = begin(folder, launcher)
    if run.wait() != 0:
        raise RuntimeError(
            f"exit code {run.returncode}: {(folder.parent / 'stderr.txt').read_text()[-2000:]}"
        )


def left(folder: Path) -> tuple[object, bytes]:
    """A run's labels and weights."""
    return list(RunDir(folder).bought().entries()), (folder / "model.safetensors").read_bytes()


def kill(folder: Path, launcher: str, victim: int, after: float, whole: tuple[object, bytes]) -> Trial | None:
    """Kill a process of a run, and go on; None if the run was done before."""
    run = begin(folder, launcher)
    await_file(folder / "config.yaml", run)
    time.sleep(after)
    if (folder / "model.safetensors").exists():
        run.wait()
        return None
    numbers, phase = ranks(run.pid, launcher), newest(folder)
    os.kill(numbers[victim], signal.SIGKILL)
    killed = time.monotonic()
    while any(map(alive, {*numbers, run.pid})) and time.monotonic() - killed < PATIENCE:
        run.poll()
        time.sleep(0.01)
    seconds = time.monotonic() - killed
    for number in filter(alive, {*numbers, run.pid}):
        os.kill(number, signal.SIGKILL)
    code, said = run.wait(), (folder.parent / "stderr.txt").read_text()
    finish(folder, launcher)
    drafts = any(folder.rglob("*.part"))
    return Trial(
        victim, after, phase, code, seconds, said.count("ducats: "), left(folder) == whole and not drafts
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Kill, go on, count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--launcher", choices=("own", "torchrun"), default="own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        undisturbed = base / "whole" / "run"
        run = begin(undisturbed, options.launcher)
        await_file(undisturbed / "config.yaml", run)
        since = time.monotonic()
        await_file(undisturbed / "model.safetensors", run)
        span = time.monotonic() - since
        run.wait()
        whole = left(undisturbed)
        trials: list[Trial] = []
        luck, number = random.Random(0), 0
        while len(trials) < options.times:
            number += 1
            after = luck.uniform(0, span)
            trial = kill(base / str(number) / "run", options.launcher, len(trials) % 2, after, whole)
            if trial is not None:
                trials.append(trial)
                print(json.dumps({**asdict(trial), "well": trial.well}), flush=True)
    result = {
        "launcher": options.launcher,
        "well": sum(trial.well for trial in trials),
        "of": len(trials),
        "codes": dict(Counter(trial.code for trial in trials)),
        "slowest_end_seconds": round(max(trial.seconds for trial in trials), 2),
        "run_seconds": round(span, 1),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps({**result, "trials": [asdict(t) for t in trials]}, indent=1))


if __name__ == "__main__":
    main()
