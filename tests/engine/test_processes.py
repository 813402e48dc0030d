"""Several processes give one answer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pick_in_processes
import pytest

from conftest import QUICK, QUICK_PIXELS, Runner
from ducats import records
from ducats.rundir import RunDir

SCRIPT = Path(__file__).with_name("score_in_processes.py")
PIXELS = Path(__file__).with_name("pick_in_processes.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def score(processes: int, count: int, out: Path, script: Path = SCRIPT) -> dict[str, Any]:
    command = [sys.executable, str(script), str(processes), str(count), str(out)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("count", [83, 5])  # uneven shares; and fewer batches than processes
def test_two_processes_pick_just_what_one_picks(tmp_path: Path, count: int) -> None:
    one, two = (score(n, count, tmp_path / f"{n}.json") for n in (1, 2))
    assert one == two


@pytest.mark.parametrize("count", [5, 2])  # an odd number of batches; and fewer batches than processes
def test_two_processes_pick_just_the_pixels_that_one_picks(tmp_path: Path, count: int) -> None:
    pick_in_processes.main(1, count, tmp_path / "1.json")
    two = score(2, count, tmp_path / "2.json", PIXELS)
    assert two == json.loads((tmp_path / "1.json").read_text())
    assert ("picked a row twice" in two["broken"]) == (count > 2)


def pixels_on_two_processes(folder: Path, *settings: str) -> RunDir:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ducats", "run", "-c", "data/streets", "--method", "duc"),
            *(part for setting in (*QUICK_PIXELS, *settings) for part in ("--set", setting)),
            *("--processes", "2", "--out", str(folder)),
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return RunDir(folder)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        # Sums of gradients round otherwise on two processes: what is asked before training must be the same.
        (("ask={budget: 5%, after: [0]}", "train.batch_size=4"), 1),
        # And what needs no model, in all rounds.
        (("query={name: random}", "task.unit=region", "train.batch_size=4"), 2),
    ],
)
def test_a_pixel_run_buys_the_same_on_two_processes(
    run_pixels: Runner, tmp_path: Path, settings: tuple[str, ...], rounds: int
) -> None:
    homes = [run_pixels(*settings), pixels_on_two_processes(tmp_path / "two", *settings)]
    ledgers = [list(home.bought().entries()) for home in homes]
    assert ledgers[0] == ledgers[1]
    assert homes[0].bought().rounds == rounds
    assert len(ledgers[0]) == 5 * 26
    for number in range(1, rounds + 1):
        files = [(home.folder / "labels" / f"round-{number:02d}.npz").read_bytes() for home in homes]
        assert files[0] == files[1]
    first = [home.stages()[0] for home in homes]
    assert all(one[name] == other[name] for one, other in [first] for name in ("labels", "clicks", "pixels"))
    losses = [[r["losses"] for r in records.read(h.metrics) if r["kind"] == "epoch"] for h in homes]
    assert losses[0][-1].keys() == losses[1][-1].keys()
    if rounds == 1:
        assert first[0]["mean_iou"] == first[1]["mean_iou"]  # of the same, untrained model


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
    lines = [
        {k: v for k, v in r.items() if k not in ("seconds", "memory")} for r in records.read(home.metrics)
    ]
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


def test_what_learns_beside_the_model_may_be_idle_in_a_step(tmp_path: Path) -> None:
    """When the whole pool was bought, a discriminator has no target image left to learn from."""
    out = tmp_path / "run"
    settings = ("query={name: aada}", "objective={name: adversarial, knobs: {hidden: 8}}", "ask.budget=80")
    done = subprocess.run(
        [*command(out), *(part for setting in settings for part in ("--set", setting))],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(RunDir(out).bought()) == 80


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
