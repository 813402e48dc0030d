"""Execution of sweeps: runs that fail, wait or are killed, mostly simulated by small scripts."""

import io
import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from child_process import fork, is_unlocked, wait_until
from commands import ducats
from ducats.cli import main
from ducats.sweep import (
    LocalSweepBackend,
    Slot,
    SweepRun,
    format_run_list,
    local_backend,
    make_slots,
    run_sweep,
    runner,
)
from ducats.utils import child_process
from ducats.utils.errors import UserError
from sweep_helpers import make_runs, write_sweep

CPU_SLOTS = [Slot("cpu", "cpu"), Slot("cpu", "cpu")]
SCRIPT_HEADER = "import os, sys, time\n"
WARM_CONTEXT = child_process._warm_context
FINISH = "(out / 'model.safetensors').touch()\n"
pytestmark = pytest.mark.usefixtures("forked_children")
ReplaceRuns = Callable[..., None]


@pytest.fixture
def replace_runs(monkeypatch: pytest.MonkeyPatch, forked_children: None) -> ReplaceRuns:
    """Replace runs by scripts, chosen by a word in the name of the run; `default` runs otherwise."""
    start: Any = vars(local_backend)["start_warm"]

    def use(default: str = FINISH, **scripts: str) -> None:
        codes = {word: SCRIPT_HEADER + code for word, code in {**scripts, "default": default}.items()}
        monkeypatch.setenv("TEST_SCRIPTS", json.dumps(codes))
        run_script = partial(start, "sweep_helpers:run_script")
        monkeypatch.setattr(local_backend, "start_warm", lambda _, *more: run_script(*more))

    return use


def run_sweep_quietly(
    runs: list[SweepRun], out: Path, slots: list[Slot] | None = None
) -> tuple[runner.SweepOutcome, str]:
    text, backend = io.StringIO(), LocalSweepBackend(slots or CPU_SLOTS)
    return run_sweep(runs, out, backend, Console(file=text, width=200)), text.getvalue()


def test_failed_or_waiting_runs_do_not_stop_the_others(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    replace_runs(
        random="print('ducats: it broke\\n')\nsys.exit(2)",
        entropy="sys.exit(3)",
        margin="os.kill(os.getpid(), 9)",
    )
    runs = make_runs(tmp_path, methods=["random", "entropy", "margin", "duc", "ducats"])
    outcome, output = run_sweep_quietly(runs, tmp_path / "out")
    names = {run.method: run.name for run in runs}
    assert sorted(outcome.done) == sorted([names["duc"], names["ducats"]])
    assert outcome.waiting == [names["entropy"]]
    assert outcome.failed == {
        names["random"]: "ducats: it broke",
        names["margin"]: "killed by SIGKILL (out of memory?)",
    }
    assert outcome.exit_code == 1
    log = tmp_path / "out" / "logs" / f"{names['random']}.txt"
    assert f"failed: {names['random']}: ducats: it broke (log: {log})" in output
    assert "5 runs: 2 done, 1 waiting for labels, 2 failed; run the same command again to retry" in output
    assert sum(f"/5 {name}, " in output for name in names.values()) == 5


def test_finished_runs_are_skipped_and_failed_ones_retried(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    runs = make_runs(tmp_path, methods=["random", "duc"])
    replace_runs(random="sys.exit('it broke')")
    out = tmp_path / "out"
    assert [*run_sweep_quietly(runs, out)[0].failed.values()] == ["it broke"]
    replace_runs(random="sys.exit(1)", duc="sys.exit('it is done already')")
    assert [*run_sweep_quietly(runs, out)[0].failed.values()] == ["exit code 1"]  # not the old log
    replace_runs(random=FINISH, duc="sys.exit('it is done already')")
    outcome, output = run_sweep_quietly(runs, out)
    assert (len(outcome.skipped), len(outcome.done), outcome.exit_code) == (1, 1, 0)
    assert "2 runs, 1 already done" in output
    assert run_sweep_quietly(runs, out)[0].skipped == [run.name for run in runs]
    assert format_run_list(runs, out).splitlines()[-1] == "2 runs: 2 done, 0 started, 0 new"


def test_exit_code_3_if_runs_only_wait(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    replace_runs("sys.exit(3)")
    outcome, output = run_sweep_quietly(make_runs(tmp_path, methods=["duc"]), tmp_path / "out")
    assert outcome.exit_code == 3
    assert "/questions" in output


def test_two_runs_in_parallel(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    """Each run ends only when the other has started; in sequence, they would time out."""
    meet = (
        "(out / 'started').touch()\ndeadline = time.monotonic() + 30\n"
        "while len(list(out.parent.glob('*/started'))) < 2 and time.monotonic() < deadline:\n"
        " time.sleep(0.02)\n"
        "sys.exit(time.monotonic() >= deadline)"
    )
    replace_runs(meet)
    runs = make_runs(tmp_path, methods=["random", "duc"])
    assert run_sweep_quietly(runs, tmp_path / "out")[0].exit_code == 0


def test_runs_get_their_device_and_config(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    replace_runs("print(os.environ['CUDA_VISIBLE_DEVICES'], end='', file=open(out / 'gpu', 'w'))\n" + FINISH)
    runs = make_runs(tmp_path, methods=["random", "duc", "entropy"])
    assert run_sweep_quietly(runs, tmp_path / "out", make_slots("cuda:0,cuda:1", 2, 2, {}))[0].exit_code == 0
    assert {(run.folder(tmp_path / "out") / "gpu").read_text() for run in runs} == {"0", "1"}
    for run in runs:
        config = yaml.safe_load((tmp_path / "out" / "configs" / f"{run.name}.yaml").read_text())
        assert config == run.config.model_dump(mode="json")


def test_folder_is_locked_against_other_sweeps(tmp_path: Path, replace_runs: ReplaceRuns) -> None:
    replace_runs()
    runs = make_runs(tmp_path, methods=["duc"])
    with runner._folder_locked(tmp_path / "out"), pytest.raises(UserError, match="another sweep is running"):
        run_sweep_quietly(runs, tmp_path / "out")
    assert run_sweep_quietly(runs, tmp_path / "out")[0].exit_code == 0


STAY_ALIVE = (  # runs until it is killed, and holds a lock
    "import fcntl\nheld = open(out / 'alive', 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n"
    "(out / 'started').touch()\ntime.sleep(600)"
)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_sweep_ends_its_runs_and_resumes(
    tmp_path: Path, replace_runs: ReplaceRuns, signal_number: signal.Signals
) -> None:
    replace_runs(STAY_ALIVE)
    runs, out = make_runs(tmp_path, methods=["random", "duc"]), tmp_path / "out"

    def act() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_sweep_quietly(runs, out)

    parent = fork(act)
    try:
        wait_until(lambda: len(list(out.glob("*/started"))) == 2)
    finally:
        os.kill(parent, signal_number)
        os.waitpid(parent, 0)
    for run in runs:
        wait_until(lambda run=run: is_unlocked(run.folder(out) / "alive"))  # type: ignore[misc]
    replace_runs()
    outcome, _ = run_sweep_quietly(runs, out)
    assert (len(outcome.done), outcome.exit_code) == (2, 0)


def test_sweep_under_nohup_outlives_its_terminal() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner._signals_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), runner._signals_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_real_sweep_is_killed_resumed_and_tabulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"name": "broken", "config": "random", "settings": "data.params.n_pool=2"}
    file, out = write_sweep(tmp_path / "s.yaml", methods=["random", broken]), tmp_path / "out"
    command = ("sweep", file, "--devices", "cpu", "--workers", "1", "--out", out)
    assert ducats(*command, "--dry-run") == 0
    assert capsys.readouterr().out.endswith("2 runs: 0 done, 0 started, 2 new\n")
    with monkeypatch.context() as patch:  # from a server, as outside of tests
        patch.setattr(child_process, "_warm_context", WARM_CONTEXT)
        parent = fork(lambda: main([str(argument) for argument in command]))
    try:
        wait_until(lambda: any(out.glob("toy-random-*/config.yaml")))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    (run,) = out.glob("toy-random-*")
    wait_until(lambda: is_unlocked(run / ".lock"))
    assert ducats(*command) == 1
    output = capsys.readouterr().out
    assert re.search(r"2 runs: 1 done, (1 of them earlier, )?1 failed", output)
    assert "the pool has 2 images: lower acquisition.budget (log: " in output
    assert ducats(*command, "--methods", "random") == 0
    assert "1 run: 1 done, 1 of them earlier" in capsys.readouterr().out
    assert ducats("table", out) == 0
    assert "| random | " in capsys.readouterr().out
