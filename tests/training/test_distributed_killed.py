"""If one of two processes is killed, the other ends at once with a message, and the run can be resumed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from conftest import QUICK
from ducats.training.launch_environment import PARENT_PID_VARIABLE
from ducats.training.peer_monitor import PEER_LOST_EXIT_CODE
from ducats.training.predictor import Predictor
from ducats.utils import files
from ranks import (
    PEER_GONE_MESSAGE,
    RankResults,
    Setup,
    by_hand,
    command,
    die,
    in_ranks,
    kill_in_epoch,
    outcome,
    run_in_ranks,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

STALL_SECONDS = 600.0  # seconds that an undetected death would take: the test would time out
SETTINGS = (*QUICK, "train.epochs=3", "acquisition={after_epochs: [1], budget: 10}")


def run_two(folder: Path, before: Setup = lambda _: None) -> RankResults:
    return run_in_ranks(command(SETTINGS, folder, "--devices", "2"), folder.parent / "output", setup=before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_two(folder).codes == [0, 0]
    return outcome(folder)


def kill_while_scoring(victim: int) -> Setup:
    """Die while scoring the pool, with the other process still busy with its own share."""

    def before(rank: int) -> None:
        genuine = Predictor.columns

        def outputs(*arguments: Any, **more: Any) -> Iterator[Any]:
            for found in genuine(*arguments, **more):
                if rank == victim:
                    die()
                time.sleep(STALL_SECONDS)
                yield found

        Predictor.columns = outputs  # type: ignore[method-assign]

    return before


def act_at_write(name: str, act: Callable[[], object]) -> None:
    """Call ``act`` when a file whose path ends with ``name`` is half written."""
    genuine = files.write_atomically

    def write(path: Path, put: Callable[[IO[bytes]], object]) -> None:
        def half(file: IO[bytes]) -> None:
            file.write(b"half a file")
            file.flush()
            act()

        genuine(path, half if path.as_posix().endswith(name) else put)

    for module in list(sys.modules.values()):
        if getattr(module, "write_atomically", None) is genuine:
            module.write_atomically = write  # type: ignore[attr-defined]


def kill_at_write(name: str) -> Setup:
    """Rank 0 dies with a file half written."""

    def before(rank: int) -> None:
        if rank == 0:
            act_at_write(name, die)

    return before


def kill_while_rank_zero_writes(name: str, folder: Path) -> Setup:
    """Rank 1 dies while rank 0 has half written a file and would need long for the rest."""
    draft = (folder / name).with_name(f".{Path(name).name}.*.part")

    def watch() -> None:
        while not any(draft.parent.glob(draft.name)):
            time.sleep(0.01)
        die()

    def before(rank: int) -> None:
        if rank == 0:
            act_at_write(name, lambda: time.sleep(STALL_SECONDS))
        else:
            threading.Thread(target=watch, daemon=True).start()

    return before


KILL_TIMES: dict[str, tuple[int, Callable[[Path], Setup]]] = {
    "in an epoch": (1, lambda _: kill_in_epoch(1)),
    "the first, in an epoch": (0, lambda _: kill_in_epoch(0)),
    "while scoring": (1, lambda _: kill_while_scoring(1)),
    "the first, while scoring": (0, lambda _: kill_while_scoring(0)),
    "the first, at a checkpoint": (0, lambda _: kill_at_write("checkpoint.pt")),
    "while the first writes": (1, lambda folder: kill_while_rank_zero_writes("labels/round-01.npz", folder)),
}


@pytest.mark.parametrize("kill_time", KILL_TIMES)
def test_a_process_is_killed(tmp_path: Path, undisturbed: dict[str, Any], kill_time: str) -> None:
    victim, before = KILL_TIMES[kill_time]
    folder = tmp_path / "run"
    killed = run_two(folder, before(folder))
    assert killed.codes[victim] == -signal.SIGKILL
    assert killed.codes[1 - victim] == PEER_LOST_EXIT_CODE
    assert killed.outputs[1 - victim].count(PEER_GONE_MESSAGE.format(victim + 1)) == 1
    assert "Traceback" not in "".join(killed.outputs)
    for path in folder.rglob("*"):  # files with their final name are complete
        assert path.suffix == ".part" or b"half a file" not in (path.read_bytes() if path.is_file() else b"")
    again = run_two(folder)
    assert again.codes == [0, 0], again.outputs
    assert outcome(folder) == undisturbed


# ---- processes started by the command itself


def test_a_child_process_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = command((*SETTINGS, "train.epochs=2000"), folder, "--devices", "2")
    first = subprocess.Popen(
        [sys.executable, "-m", "ducats", *endless],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 240
        while not (folder / "labels" / "round-01.npz").exists() and time.monotonic() < until:
            assert first.poll() is None, "the run ended before it could be killed"
            time.sleep(0.02)
        (child,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        stderr = first.communicate(timeout=60)[1]
    finally:
        first.kill()
    assert first.returncode == PEER_LOST_EXIT_CODE
    assert stderr.count(PEER_GONE_MESSAGE.format(2)) == 1
    assert "Traceback" not in stderr


def test_a_child_dies_before_all_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stillborn = tmp_path / "stillborn.py"
    stillborn.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # Fabric starts copies of this process
    monkeypatch.setattr(sys, "argv", [str(stillborn)])
    alone = command(SETTINGS, tmp_path / "run", "--devices", "2")
    done = run_in_ranks(alone, tmp_path / "output", 1, lambda *_: {})
    assert done.codes == [PEER_LOST_EXIT_CODE]
    assert done.outputs[0].count(PEER_GONE_MESSAGE.format(2)) == 1


def test_the_parent_dies_before_all_are_connected(tmp_path: Path) -> None:
    def orphan() -> None:
        """A rank whose parent has died."""
        os.environ[PARENT_PID_VARIABLE] = str(os.getpid())
        if os.fork() == 0:
            while os.getppid() == int(os.environ[PARENT_PID_VARIABLE]):
                time.sleep(0.01)
            done = run_in_ranks(
                command(SETTINGS, tmp_path / "run", "--devices", "2"),
                tmp_path / "inner",
                1,
                lambda _, world, port: by_hand(1, world, port),
            )
            (tmp_path / "codes").write_text(str(done.codes))

    in_ranks(lambda _: orphan(), tmp_path / "outer", 1, lambda *_: {})
    until = time.monotonic() + 60
    while not (tmp_path / "codes").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert (tmp_path / "codes").read_text() == str([PEER_LOST_EXIT_CODE])
    assert PEER_GONE_MESSAGE.format(1) in (tmp_path / "inner" / "0.txt").read_text()
