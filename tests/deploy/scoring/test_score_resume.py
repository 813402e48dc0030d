"""Scoring in several processes, killed and resumed: the picks stay the same."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import pytest

from child_process import fork, has_ended, run_in_child, wait_until
from commands import ducats
from ducats.deploy import TrainedModel, load_trained_model
from ducats.deploy.scoring import Job, ScoringInterrupted, local_backend, make_streaming_query, score_pool
from ducats.utils import files
from ducats.utils.errors import UserError
from scoring_runs import train_run, write_image_folder, write_shard_folder
from synthetic_pools import write_file

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc and fork"),
    pytest.mark.usefixtures("forked_children"),
]

WHITE = b"P6 8 8 255 " + b"\xff" * 8 * 8 * 3
# A network that prints, and blocks on a white image while the file "hold" exists.
BLOCKING_NET = """
import time
from pathlib import Path
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.head = nn.Linear(channels * 64, classes)

    def forward(self, images):
        print("forward")
        while (images == 1).flatten(1).all(1).any() and Path("hold").exists():
            time.sleep(0.01)
        return self.head(images.flatten(1))
"""


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a run whose model can be blocked."""
    folder = tmp_path_factory.mktemp("trained")
    write_file(folder / "blocking_net.py", BLOCKING_NET.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_run(folder / "run", "model.name=blocking_net:Net", "model.params={}")
    return folder


@pytest.fixture
def workspace(trained_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the run, and a pool whose tenth image, in block 1, blocks its model."""
    shutil.copytree(trained_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_image_folder(tmp_path / "pool", 30)
    write_file(tmp_path / "pool" / "0" / "zz-white.ppm", WHITE)
    return tmp_path


def score_picks(trained: TrainedModel, workspace: Path, out: str, **kwargs: object) -> bytes:
    score_pool(trained, str(workspace / "pool"), out=workspace / out, budget=4, device="cpu", **kwargs)  # type: ignore[arg-type]
    return (workspace / out / "picks.csv").read_bytes()


def child_pids() -> set[int]:
    found = set[int]()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_scoring_resumes_after_a_worker_is_killed(workspace: Path) -> None:
    trained = load_trained_model(workspace / "run", trust_code=True)
    undisturbed = score_picks(trained, workspace, "undisturbed")
    (workspace / "hold").touch()
    failure, before = list[Exception](), child_pids()

    def command() -> None:
        try:
            score_picks(trained, workspace, "out", processes=2)
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=command)
    thread.start()
    done, blocked = (workspace / "out" / "chunks" / f"chunk-{chunk}-of-2.npz" for chunk in (0, 1))
    wait_until(lambda: done.exists() and len(child_pids() - before) == 1)
    (worker,) = child_pids() - before
    os.kill(worker, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(failure[0], ScoringInterrupted)
    assert "was killed by SIGKILL" in str(failure[0])
    assert "run the same command again to resume" in str(failure[0])
    assert child_pids() == before
    assert not blocked.exists()
    assert not (workspace / "out" / "picks.csv").exists()
    kept = done.stat().st_mtime_ns
    (workspace / "hold").unlink()
    assert score_picks(trained, workspace, "out", processes=2) == undisturbed
    assert done.stat().st_mtime_ns == kept  # a finished chunk is not scored again


def test_picks_do_not_depend_on_number_of_processes(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(write_shard_folder(workspace / "shards", 3))
    for processes in ("1", "2"):
        options = ["--budget", "10%", "--query", "clue", "--processes", processes, "--device", "cpu"]
        assert ducats("score", "run", pool, "--trust-code", *options, "--out", processes) == 0
        assert "33 images scored" in capsys.readouterr().out
    one, two = ((workspace / name / "picks.csv").read_bytes() for name in ("1", "2"))
    assert one == two
    assert one.count(b"\n") == 1 + 3
    summary = json.loads((workspace / "2" / "score.json").read_text())
    assert [chunk["images"] for chunk in summary["chunks"]] == [22, 11]
    assert not list((workspace / "2").glob("*.log"))


def make_job(workspace: Path) -> Job:
    streaming_query = make_streaming_query(
        load_trained_model(workspace / "run", trust_code=True).config, "duc", 1
    )
    pool, out = str(workspace / "pool"), workspace / "out"
    return Job(workspace / "run", pool, "auto", streaming_query, 2, 8, False, "cpu", 1, out, 256)


def test_worker_exits_with_its_parent(workspace: Path) -> None:
    (workspace / "hold").touch()
    trained = load_trained_model(workspace / "run", trust_code=True)
    parent = fork(lambda: score_picks(trained, workspace, "out", processes=2))
    done = workspace / "out" / "chunks" / "chunk-0-of-2.npz"
    children = Path(f"/proc/{parent}/task/{parent}/children")
    wait_until(lambda: done.exists() and len(children.read_text().split()) == 1)
    blocked = int(children.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: has_ended(blocked))


def test_worker_reports_progress_and_errors(workspace: Path) -> None:
    job, (receiver, sender) = make_job(workspace), Pipe(duplex=False)
    with receiver, sender:
        local_backend.score_chunks(job, [0, 1], sender)
        assert [receiver.recv() for _ in range(4)] == [8, 16, 24, 31]
        (workspace / "run" / "model.safetensors").unlink()
        with pytest.raises(SystemExit):
            local_backend.score_chunks(job, [0], sender)
        assert "has no model yet" in receiver.recv()


def fail_first(job: Job, chunks: list[int], messages: Connection) -> None:
    """In place of a worker, fail on the first chunk as the environment says; otherwise sleep."""
    if chunks != [0]:
        time.sleep(60)
    exec(os.environ["TEST_FAILURE"], {"messages": messages})


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("messages.send('the pool is empty'); exit(2)", UserError, "^the pool is empty$"),
        ("exit(7)", ScoringInterrupted, r"process 1 exited with code 7 .*process-1\.log"),
        ("1 / 0", ScoringInterrupted, r"process 1 exited with code 1 .*process-1\.log"),
    ],
)
def test_failure_of_one_worker_stops_the_others(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception], message: str
) -> None:
    monkeypatch.setenv("TEST_FAILURE", code)
    monkeypatch.setattr(local_backend, "WORKER", f"{__name__}:{fail_first.__name__}")
    before = child_pids()
    with pytest.raises(error, match=message):
        score_picks(load_trained_model(workspace / "run", trust_code=True), workspace, "out", processes=2)
    assert child_pids() == before
    assert ("ZeroDivisionError" in (workspace / "out" / "process-1.log").read_text()) == (code == "1 / 0")


# ---- killed at every write


def kill_at_write(number: int, moment: str) -> Callable[[Path, Callable[[IO[bytes]], object]], None]:
    """Return a ``write_atomically`` that kills the process inside or after its n-th call."""
    original, calls = files.write_atomically, 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def half(file: IO[bytes]) -> None:
        file.write(b"half a file")
        file.flush()
        die()

    def write(path: Path, put: Callable[[IO[bytes]], object]) -> None:
        nonlocal calls
        calls += 1
        original(path, half if calls == number and moment == "inside" else put)
        if calls == number:
            die()

    return write


def test_resume_after_kill_at_any_write(workspace: Path) -> None:
    """Seven writes: settings, three chunks, unreadable.csv, score.json, picks.csv."""
    trained = load_trained_model(workspace / "run", trust_code=True)
    undisturbed = score_picks(trained, workspace, "undisturbed", chunks=3)
    names = {path.name for path in (workspace / "undisturbed").rglob("*")}
    for number in range(1, 8):
        for moment in ("inside", "after"):
            out = f"{number}-{moment}"

            def act(write: object = kill_at_write(number, moment), out: str = out) -> None:
                files.write_atomically = write  # type: ignore[assignment]
                score_picks(trained, workspace, out, chunks=3)

            assert run_in_child(act) == -signal.SIGKILL
            found = workspace / out / "picks.csv"
            assert found.exists() == ((number, moment) == (7, "after"))
            assert score_picks(trained, workspace, out, chunks=3) == undisturbed
            assert {path.name for path in (workspace / out).rglob("*")} == names
