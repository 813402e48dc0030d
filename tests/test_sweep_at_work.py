"""Sweeps at work: runs that fail, wait or are killed; most are played by small scripts."""

import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from ducats.cli import main
from ducats.cli.child import parent_of
from ducats.errors import UserError
from ducats.sweep import Cell, Slot, listing, make_slots, run_all, workers
from sweeps import ducats, plan, write

HERE = [Slot("cpu", "cpu"), Slot("cpu", "cpu")]
DO = "import os, pathlib, sys, time\nout = pathlib.Path(sys.argv[2])\nout.mkdir(exist_ok=True)\n"
DONE = "(out / 'model.safetensors').touch()\n"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a script stand for a run: by a word in the run's name, else the one named `others`."""

    def use(others: str = DONE, **scripts: str) -> None:
        def command(config: Path, folder: Path) -> list[str]:
            script = next((code for word, code in scripts.items() if word in folder.name), others)
            return [sys.executable, "-c", DO + script, str(config), str(folder), str(os.getpid())]

        monkeypatch.setattr(workers, "_command", command)

    return use


def go(cells: list[Cell], out: Path, slots: list[Slot] | None = None) -> tuple[workers.Outcome, str]:
    text = io.StringIO()
    return run_all(cells, out, slots or HERE, Console(file=text, width=200)), text.getvalue()


def test_a_run_that_fails_or_waits_does_not_stop_the_rest(tmp_path: Path, play: Callable[..., None]) -> None:
    play(
        random="print('ducats: it broke\\n')\nsys.exit(2)",
        entropy="sys.exit(3)",
        margin="os.kill(os.getpid(), 9)",
    )
    cells = plan(tmp_path, methods=["random", "entropy", "margin", "duc", "spread"])
    outcome, said = go(cells, tmp_path / "out")
    names = {cell.method: cell.name for cell in cells}
    assert sorted(outcome.done) == sorted([names["duc"], names["spread"]])
    assert outcome.waiting == [names["entropy"]]
    assert outcome.failed == {
        names["random"]: "ducats: it broke",
        names["margin"]: "ended by SIGKILL (is there enough memory?)",
    }
    assert outcome.code == 1
    assert (
        f"failed: {names['random']}: ducats: it broke (log: {tmp_path}/out/logs/{names['random']}.txt)"
        in said
    )
    assert "5 runs: 2 done, 1 waiting for people's answers, 2 failed; the same command tries again" in said
    assert sum(f"/5 {name}, " in said for name in names.values()) == 5


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(
    tmp_path: Path, play: Callable[..., None]
) -> None:
    cells = plan(tmp_path, methods=["random", "duc"])
    play(random="sys.exit('it broke')")
    assert list(go(cells, tmp_path / "out")[0].failed.values()) == ["it broke"]
    play(random="sys.exit(1)", duc="sys.exit('it is done already')")
    assert list(go(cells, tmp_path / "out")[0].failed.values()) == ["exit code 1"]  # not what it said before
    play(random=DONE, duc="sys.exit('it is done already')")
    outcome, said = go(cells, tmp_path / "out")
    assert ([len(outcome.skipped), len(outcome.done)], outcome.code) == ([1, 1], 0)
    assert "2 runs, 1 of them done before" in said
    assert go(cells, tmp_path / "out")[0].skipped == [cell.name for cell in cells]
    assert listing(cells, tmp_path / "out").splitlines()[-1] == "2 runs: 2 done, 0 begun, 0 new"


def test_waiting_alone_is_exit_code_3(tmp_path: Path, play: Callable[..., None]) -> None:
    play("sys.exit(3)")
    outcome, said = go(plan(tmp_path, methods=["duc"]), tmp_path / "out")
    assert outcome.code == 3
    assert "/questions" in said


def test_two_run_at_a_time(tmp_path: Path, play: Callable[..., None]) -> None:
    """Each ends only once the other has begun: one after the other, they would give up."""
    meet = (
        "(out / 'begun').touch()\nuntil = time.monotonic() + 30\n"
        "while len(list(out.parent.glob('*/begun'))) < 2 and time.monotonic() < until: time.sleep(0.02)\n"
        "sys.exit(time.monotonic() >= until)"
    )
    play(meet)
    assert go(plan(tmp_path, methods=["random", "duc"]), tmp_path / "out")[0].code == 0


def test_runs_see_their_device_and_their_config(tmp_path: Path, play: Callable[..., None]) -> None:
    play("print(os.environ['CUDA_VISIBLE_DEVICES'], end='', file=open(out / 'gpu', 'w'))\n" + DONE)
    cells = plan(tmp_path, methods=["random", "duc", "entropy"])
    assert go(cells, tmp_path / "out", make_slots("cuda:0,cuda:1", 2, 2, {}))[0].code == 0
    assert {(cell.folder(tmp_path / "out") / "gpu").read_text() for cell in cells} == {"0", "1"}
    for cell in cells:
        config = yaml.safe_load((tmp_path / "out" / "configs" / f"{cell.name}.yaml").read_text())
        assert config == cell.config.model_dump(mode="json")


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path, play: Callable[..., None]) -> None:
    play()
    cells = plan(tmp_path, methods=["duc"])
    with workers._hold(tmp_path / "out"), pytest.raises(UserError, match="another sweep is at work"):
        go(cells, tmp_path / "out")
    assert go(cells, tmp_path / "out")[0].code == 0


STAY = (  # until somebody ends it; as long as it lives it holds a lock
    "import fcntl, threading\nfrom ducats.cli.child import end_with\n"
    "threading.Thread(target=end_with, args=(int(sys.argv[3]),), daemon=True).start()\n"
    "held = open(out / 'alive', 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n(out / 'begun').touch()\n"
    "time.sleep(600)"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_sweep_takes_its_runs_with_it_and_goes_on(
    tmp_path: Path, play: Callable[..., None], how: signal.Signals
) -> None:
    play(STAY)
    cells, out = plan(tmp_path, methods=["random", "duc"]), tmp_path / "out"
    parent = os.fork()
    if parent == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            go(cells, out)
        finally:
            os._exit(5)
    try:
        wait_for(lambda: len(list(out.glob("*/begun"))) == 2)
    finally:
        os.kill(parent, how)
        os.waitpid(parent, 0)
    for cell in cells:
        wait_for(lambda cell=cell: is_free(cell.folder(out) / "alive"))  # type: ignore[misc]
    play()
    outcome, _ = go(cells, out)
    assert (len(outcome.done), outcome.code) == (2, 0)


def test_a_sweep_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with workers._stoppable():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), workers._stoppable():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_further_processes_of_a_run_end_with_its_first_one() -> None:
    """They are started by the first one's command line, which names the sweep: it is not their parent."""
    assert (parent_of(7, {}), parent_of(7, {"LOCAL_RANK": "0"})) == (7, 7)
    assert parent_of(7, {"LOCAL_RANK": "1"}) == os.getppid()
    command = [sys.executable, "-m", "ducats.cli.child", str(os.getppid()), "--version"]
    further = {**os.environ, "LOCAL_RANK": "1"}
    assert subprocess.run(command, env=further, capture_output=True, check=False).returncode == 0


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock on a file any more: who held it is gone."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_a_real_sweep_is_killed_goes_on_and_becomes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"name": "broken", "config": "random", "settings": "data.knobs.pool=2"}
    file, out = write(tmp_path / "s.yaml", methods=["random", broken]), tmp_path / "out"
    command = ("sweep", file, "--devices", "cpu", "--workers", "1", "--out", out)
    assert ducats(*command, "--dry-run") == 0
    assert capsys.readouterr().out.endswith("2 runs: 0 done, 0 begun, 2 new\n")
    parent = os.fork()
    if parent == 0:
        try:
            main([str(argument) for argument in command])
        finally:
            os._exit(5)
    try:
        wait_for(lambda: any(out.glob("toy-random-*/config.yaml")))
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    (run,) = out.glob("toy-random-*")
    wait_for(lambda: is_free(run / ".lock"))
    assert ducats(*command) == 1
    said = capsys.readouterr().out
    assert re.search(r"2 runs: 1 done, (1 of them before, )?1 failed", said)
    assert "the pool holds 2 images: lower ask.budget (log: " in said
    assert ducats(*command, "--methods", "random") == 0
    assert "1 run: 1 done, 1 of them before" in capsys.readouterr().out
    assert ducats("table", out) == 0
    assert "| random | " in capsys.readouterr().out
