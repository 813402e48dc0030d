"""If one of two processes is killed, the other ends at once with a message, and the run can be resumed."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from child_process import has_ended
from conftest import QUICK
from ducats.training.peer_monitor import PEER_LOST_EXIT_CODE
from ducats.training.predictor import Predictor
from ducats.utils import files
from ranks import (
    PEER_GONE_MESSAGE,
    RankResults,
    Setup,
    command,
    die,
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

    def write(path: Path, put: Callable[[IO[bytes]], object], replace: Any = None) -> None:
        def half(file: IO[bytes]) -> None:
            file.write(b"half a file")
            file.flush()
            act()

        genuine(path, half if path.as_posix().endswith(name) else put, replace)

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
    "the first, in an epoch": (0, lambda _: kill_in_epoch(0)),  # the second: test_multi_host.py
    "while scoring": (1, lambda _: kill_while_scoring(1)),
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


# A network that kills rank 1 in the fifth step.
FRAGILE_NETWORK = """
import os
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.head, self.steps = nn.Linear(channels * 64, classes), 0

    def forward(self, images):
        self.steps += self.training
        if self.steps == 5 and os.environ["LOCAL_RANK"] == "1":
            os.kill(os.getpid(), 9)
        return self.head(images.flatten(1))
"""


def run_alone(folder: Path, *settings: str, before: Setup = lambda _: None) -> RankResults:
    """Run the command in one process, which starts the ranks."""
    run = command((*SETTINGS, *settings), folder / "run", "--devices", "2")
    return run_in_ranks(run, folder / "output", 1, lambda *_: {}, before)


def test_a_child_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE_NETWORK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    killed = run_alone(tmp_path, "model.name=fragile:Net", "model.params={}")
    assert killed.codes == [PEER_LOST_EXIT_CODE], killed.outputs
    assert killed.outputs[0].count(PEER_GONE_MESSAGE.format(2)) == 1
    assert "Traceback" not in killed.outputs[0]
    assert (tmp_path / "run" / "config.yaml").exists()  # the ranks were connected


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("rank == '1' and os.kill(os.getpid(), 9)", PEER_LOST_EXIT_CODE, "process 2 of"),
        ("rank == '1' and os.kill(os.getpid(), 15)", PEER_LOST_EXIT_CODE, "process 2 of"),
        ("rank == '0' and sys.exit('no memory')", 1, "no memory"),
        ("rank == '0' and (print('on', 'ce', sep=''), os.kill(os.getppid(), 2))", 128 + 2, "once"),
        ("rank == '0' and (print('on', 'ce', sep=''), os.kill(os.getppid(), 15))", 128 + 15, "once"),
    ],
)
def test_torch_ends_the_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, words: str
) -> None:
    """Scripts in place of the ranks: they fail, or signal their parent, and would otherwise sleep."""
    source = f"""
import functools, os, pathlib, sys, time
print = functools.partial(print, flush=True)
folder, rank = pathlib.Path({str(tmp_path)!r}), os.environ["LOCAL_RANK"]
(folder / f"{{rank}}.part").write_text(str(os.getpid()))
(folder / f"{{rank}}.part").rename(folder / f"{{rank}}.pid")
while len(list(folder.glob("*.pid"))) < 2:
    time.sleep(0.01)
{script}
time.sleep({STALL_SECONDS})
"""
    (tmp_path / "failing_rank.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("ducats.training.launch.CHILD_MODULE", "failing_rank")
    done = run_alone(tmp_path, before=lambda _: signal.signal(signal.SIGINT, signal.default_int_handler))
    assert done.codes == [code]
    assert done.outputs[0].count(words) == 1
    assert ("is gone" in done.outputs[0]) == (code == PEER_LOST_EXIT_CODE)
    assert all(has_ended(int(path.read_text())) for path in tmp_path.glob("*.pid"))
