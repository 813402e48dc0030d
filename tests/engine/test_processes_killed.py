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
from ducats import files
from ducats.engine.hosts import FIRST
from ducats.engine.lifeline import LOST
from ducats.training import forward, image_selection
from ranks import GONE, Before, Ranks, by_hand, command, die, in_an_epoch, in_ranks, outcome, run_in_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LONG = 600.0  # seconds that an undetected death would take: the test would time out
SETTINGS = (*QUICK, "train.epochs=3", "acquisition={after_epochs: [1], budget: 10}")


def two(folder: Path, before: Before = lambda _: None) -> Ranks:
    return run_in_ranks(command(SETTINGS, folder, "--devices", "2"), folder.parent / "said", before=before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert two(folder).codes == [0, 0]
    return outcome(folder)


def while_scoring(victim: int) -> Before:
    """Die while scoring the pool, with the other process still busy with its own share."""

    def before(rank: int) -> None:
        genuine = forward.predict_columns

        def outputs(*arguments: Any, **more: Any) -> Iterator[Any]:
            for found in genuine(*arguments, **more):
                if rank == victim:
                    die()
                time.sleep(LONG)
                yield found

        image_selection.predict_columns = outputs  # type: ignore[attr-defined]

    return before


def at_a_write(name: str, act: Callable[[], object]) -> None:
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


def while_it_writes(name: str) -> Before:
    """Rank 0 dies with a file half written."""

    def before(rank: int) -> None:
        if rank == 0:
            at_a_write(name, die)

    return before


def while_the_first_writes(name: str, folder: Path) -> Before:
    """Rank 1 dies while rank 0 has half written a file and would need long for the rest."""
    draft = (folder / name).with_name(f".{Path(name).name}.*.part")

    def watch() -> None:
        while not any(draft.parent.glob(draft.name)):
            time.sleep(0.01)
        die()

    def before(rank: int) -> None:
        if rank == 0:
            at_a_write(name, lambda: time.sleep(LONG))
        else:
            threading.Thread(target=watch, daemon=True).start()

    return before


MOMENTS: dict[str, tuple[int, Callable[[Path], Before]]] = {
    "in an epoch": (1, lambda _: in_an_epoch(1)),
    "the first, in an epoch": (0, lambda _: in_an_epoch(0)),
    "while scoring": (1, lambda _: while_scoring(1)),
    "the first, while scoring": (0, lambda _: while_scoring(0)),
    "the first, at a checkpoint": (0, lambda _: while_it_writes("checkpoint.pt")),
    "while the first writes": (1, lambda folder: while_the_first_writes("labels/round-01.npz", folder)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_is_killed(tmp_path: Path, undisturbed: dict[str, Any], moment: str) -> None:
    victim, before = MOMENTS[moment]
    folder = tmp_path / "run"
    killed = two(folder, before(folder))
    assert killed.codes[victim] == -signal.SIGKILL
    assert killed.codes[1 - victim] == LOST
    assert killed.said[1 - victim].count(GONE.format(victim + 1)) == 1
    assert "Traceback" not in "".join(killed.said)
    for path in folder.rglob("*"):  # files with their final name are complete
        assert path.suffix == ".part" or b"half a file" not in (path.read_bytes() if path.is_file() else b"")
    again = two(folder)
    assert again.codes == [0, 0], again.said
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
        said = first.communicate(timeout=60)[1]
    finally:
        first.kill()
    assert first.returncode == LOST
    assert said.count(GONE.format(2)) == 1
    assert "Traceback" not in said


def test_a_child_dies_before_all_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stillborn = tmp_path / "stillborn.py"
    stillborn.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # Fabric starts copies of this process
    monkeypatch.setattr(sys, "argv", [str(stillborn)])
    alone = command(SETTINGS, tmp_path / "run", "--devices", "2")
    done = run_in_ranks(alone, tmp_path / "said", 1, lambda *_: {})
    assert done.codes == [LOST]
    assert done.said[0].count(GONE.format(2)) == 1


def test_the_parent_dies_before_all_are_connected(tmp_path: Path) -> None:
    def orphan() -> None:
        """A rank whose parent has died."""
        os.environ[FIRST] = str(os.getpid())
        if os.fork() == 0:
            while os.getppid() == int(os.environ[FIRST]):
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
    assert (tmp_path / "codes").read_text() == str([LOST])
    assert GONE.format(1) in (tmp_path / "inner" / "0.txt").read_text()
