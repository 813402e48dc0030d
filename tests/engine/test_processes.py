"""Several processes give one answer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import QUICK
from ducats import records
from ducats.rundir import RunDir

SCRIPT = Path(__file__).with_name("score_in_processes.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def score(processes: int, count: int, out: Path) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), str(processes), str(count), str(out)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("count", [83, 5])  # uneven shares; and fewer batches than processes
def test_two_processes_pick_just_what_one_picks(tmp_path: Path, count: int) -> None:
    one, two = (score(n, count, tmp_path / f"{n}.json") for n in (1, 2))
    assert one == two


def command(folder: Path) -> list[str]:
    settings = [part for setting in QUICK for part in ("--set", setting)]
    return [
        sys.executable,
        "-m",
        "ducats",
        "run",
        "--method",
        "duc",
        *settings,
        "--processes",
        "2",
        "--out",
        str(folder),
    ]


def finish(folder: Path) -> RunDir:
    done = subprocess.run(
        command(folder), env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDir(folder)


def outcome(home: RunDir) -> tuple[object, ...]:
    lines = [{k: v for k, v in r.items() if k != "seconds"} for r in records.read(home.metrics)]
    return lines, list(home.bought().entries()), {k: v.tolist() for k, v in home.model().items()}


def test_a_whole_run_on_two_processes_trains_buys_and_resumes(tmp_path: Path) -> None:
    whole = finish(tmp_path / "whole")
    assert len(whole.bought()) == 20
    assert [r["labels"] for r in whole.stages()] == [0, 10, 20]
    first, last = (r["losses"]["source/nll"] for r in (records.read(whole.metrics)[i] for i in (0, -2)))
    assert last < first

    # Kill both processes once the first labels are bought, wherever they are then.
    folder = tmp_path / "killed"
    both = subprocess.Popen(
        command(folder),
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (folder / "labels" / "round-01.npz").exists() and time.monotonic() < deadline:
        assert both.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.killpg(both.pid, signal.SIGKILL)
    both.wait()
    # Both are in one process group; give the system a moment to clear them away.
    time.sleep(1.0)
    assert not (folder / "model.safetensors").exists()
    assert outcome(finish(folder)) == outcome(whole)


def test_one_bad_input_is_one_message_not_two(tmp_path: Path) -> None:
    done = subprocess.run(
        [*command(tmp_path / "run"), "--set", "query.knobs.kapa=3"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("has no knob 'kapa'") == 1


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("oracle.name=people", 3, "round 1 waits for 10 labels"),
        ("train.lr=1e30", 2, "became nan"),
        ("train.batch_size=3", 2, "must be a multiple of 2 processes"),
    ],
)
def test_what_stops_one_process_stops_all_with_one_message(
    tmp_path: Path, setting: str, code: int, words: str
) -> None:
    done = subprocess.run(
        [*command(tmp_path / "run"), "--set", setting, "--set", "train.schedule.name=constant"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    assert done.stderr.count(words) == 1
