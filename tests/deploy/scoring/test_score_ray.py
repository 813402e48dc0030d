"""Scoring on a real Ray cluster of two nodes: the same picks even if workers or nodes are killed."""

import importlib
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from child_process import wait_until
from commands import ducats
from ducats.deploy import TrainedModel, load_trained_model
from ducats.deploy.scoring import ScoringInterrupted, ray_backend, score_pool
from ducats.utils.cluster import TaskLost, TaskPool, TaskResult, ray_connection, ray_pool, versions
from ducats.utils.errors import UserError
from ray_clusters import two_nodes
from scoring_runs import train_run, write_image_folder
from synthetic_pools import write_file

WHITE = b"P6 8 8 255 " + b"\xff" * 8 * 8 * 3
# A network that, on a white image while the file "hold" exists, writes its process and node id and blocks.
BLOCKING_NET = """
import os, time
from pathlib import Path
import ray
from torch import nn

HERE = Path({workspace!r})

class Net(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.head = nn.Linear(channels * 64, classes)

    def forward(self, images):
        white = (images == 1).flatten(1).all(1).any()
        if white and (HERE / "hold").exists():
            (HERE / "at" / str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())
            while (HERE / "hold").exists():
                time.sleep(0.01)
        return self.head(images.flatten(1))
"""
# A task that counts its calls and kills its process, except for the argument "harmless".
DEADLY_TASK = """
import os
from pathlib import Path

def count(folder, name):
    with Path(folder, name).open("a") as file:
        file.write("x")
    if name != "harmless":
        os._exit(1)
    return name
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder with a run whose model can be blocked, and a pool of four blocks, two with a white image."""
    workspace = tmp_path_factory.mktemp("ray")
    write_file(
        workspace / "modules" / "ray_blocking_net.py", BLOCKING_NET.format(workspace=str(workspace)).encode()
    )
    write_file(workspace / "modules" / "deadly.py", DEADLY_TASK.encode())
    (workspace / "at").mkdir()
    write_image_folder(workspace / "pool", 30)
    for folder in ("0", "3"):
        write_file(workspace / "pool" / folder / "zz-white.ppm", WHITE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(workspace / "modules")
        # For the nodes, which inherit this environment.
        patch.setenv("PYTHONPATH", str(workspace / "modules"), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        pytest.importorskip("ray", reason="needs ducats[ray]")
        train_run(workspace / "run", "model.name=ray_blocking_net:Net", "model.params={}")
        score_pool(
            load_trained_model(workspace / "run", trust_code=True),
            str(workspace / "pool"),
            out=workspace / "local",
            budget=4,
            device="cpu",
        )
        yield workspace


@pytest.fixture(scope="module")
def cluster(workspace: Path) -> Iterator[Any]:
    import ray

    with two_nodes() as cluster:
        # Stay connected, so that workers that have imported torch are reused by later tests.
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster


def score_picks(workspace: Path, out: str, trained: TrainedModel | None = None, **params: object) -> bytes:
    trained = trained or load_trained_model(workspace / "run", trust_code=True)
    kwargs: Any = {"budget": 4, "device": "cpu", "backend": "ray", "chunks": 4, "backend_params": params}
    score_pool(trained, str(workspace / "pool"), out=workspace / out, **kwargs)
    return (workspace / out / "picks.csv").read_bytes()


def wait_for_results(task_pool: TaskPool, count: int) -> list[TaskResult]:
    """Wait for this many tasks and return their results."""
    ended = list[TaskResult]()

    def all_ended() -> bool:
        ended.extend(task_pool.wait(1.0))
        return len(ended) == count

    wait_until(all_ended)
    return ended


@contextmanager
def blocked_workers(workspace: Path, out: str) -> Iterator[dict[str, int]]:
    """Score until two chunks are done and two blocked; yield the blocked process of each node; resume."""
    found, failure = list[bytes](), list[BaseException]()

    def command() -> None:
        try:
            found.append(score_picks(workspace, out))
        except BaseException as error:
            failure.append(error)

    for mark in (workspace / "at").iterdir():
        mark.unlink()
    (workspace / "hold").touch()
    thread = threading.Thread(target=command)
    thread.start()
    try:
        marks = workspace / "at"  # a file exists before it is written
        wait_until(lambda: failure or [bool(mark.read_text()) for mark in marks.iterdir()] == [True, True])
        wait_until(lambda: failure or len(list((workspace / out / "chunks").glob("chunk-*"))) == 2)
        yield {mark.read_text(): int(mark.name) for mark in marks.iterdir()}
    finally:
        (workspace / "hold").unlink()
        thread.join(240)
    assert not failure
    assert not thread.is_alive()
    assert found == [(workspace / "local" / "picks.csv").read_bytes()]


def test_picks_equal_those_of_one_machine(
    workspace: Path, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--trust-code",
        "--budget",
        "4",
        "--backend",
        "ray",
        "--ray-address",
        cluster.address,
        "--device",
        "cpu",
    ]
    assert ducats("score", workspace / "run", workspace / "pool", *options, "--out", workspace / "same") == 0
    assert "32 images scored" in capsys.readouterr().out
    assert (workspace / "same" / "picks.csv").read_bytes() == (workspace / "local" / "picks.csv").read_bytes()
    assert len(list((workspace / "same" / "chunks").iterdir())) == 64


def test_both_nodes_are_used_and_keep_half_of_their_cpus(workspace: Path, cluster: Any) -> None:
    import ray

    with blocked_workers(workspace, "halves") as workers:
        assert workers.keys() == {node["NodeID"] for node in ray.nodes()}
        assert ray.cluster_resources()["CPU"] == 4
        wait_until(lambda: ray.available_resources()["CPU"] == 2)  # free resources are updated with a delay
        others = TaskPool(platform.node)  # another pool: it finds free slots
        assert others.free_slots() == 2
        addresses = [others.submit(number) for number in range(2)]
        assert others.free_slots() == 0
        assert sorted(wait_for_results(others, 2)) == [(0, platform.node(), None), (1, platform.node(), None)]
        assert addresses == [node["NodeManagerAddress"] for node in ray.nodes()]
    assert TaskPool(platform.node, max_tasks=1).free_slots() == 1


def user_error_of(task_pool: TaskPool) -> str:
    """Run a task without arguments and return the message of its UserError."""
    task_pool.submit("it")
    (ended,) = wait_for_results(task_pool, 1)
    assert isinstance(ended.error, UserError)
    return str(ended.error)


def test_node_must_have_the_same_packages(
    workspace: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "only_here.py", b"def work():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = user_error_of(TaskPool(importlib.import_module("only_here").work))
    assert message.startswith("a node lacks a required package (No module named 'only_here')")
    monkeypatch.setattr(
        ray_pool, "installed_versions", lambda: {**versions.installed_versions(), "torch": "0.4"}
    )
    message = user_error_of(TaskPool(platform.node))
    assert f"torch is {metadata.version('torch')} on node" in message
    assert "0.4 on the submitting machine" in message


def test_user_errors_on_a_node_are_raised_here(workspace: Path, cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("path\nnowhere.png\n")
    trained = load_trained_model(workspace / "run", trust_code=True)
    with pytest.raises(UserError, match="none of the 1 images"):
        score_pool(trained, str(tmp_path / "one.csv"), out=tmp_path / "o", budget=1, backend="ray", chunks=1)
    with pytest.raises(UserError, match="--device cuda: no node"):
        score_pool(
            trained, str(workspace / "pool"), out=tmp_path / "p", budget=1, backend="ray", device="cuda"
        )


# The following tests kill workers; new ones have to import torch again.


def test_killed_worker_is_replaced(workspace: Path, cluster: Any) -> None:
    with blocked_workers(workspace, "worker") as workers:
        os.kill(min(workers.values()), signal.SIGKILL)


def test_task_that_kills_every_worker_is_given_up(workspace: Path, cluster: Any, tmp_path: Path) -> None:
    deadly = importlib.import_module("deadly")
    task_pool = TaskPool(deadly.count)
    for name in ("deadly", "harmless"):
        task_pool.submit(name, str(tmp_path), name)
    ended = {one.name: one for one in wait_for_results(task_pool, 2)}
    assert ended["harmless"] == ("harmless", "harmless", None)
    error = ended["deadly"].error
    assert isinstance(error, TaskLost)
    assert (tmp_path / "deadly").read_text() == "xxx"
    assert task_pool.free_slots() == 2
    interrupted = ray_backend._translate_error(3, SimpleNamespace(n_chunks=4), error)  # type: ignore[arg-type]
    assert isinstance(interrupted, ScoringInterrupted)
    assert str(interrupted).startswith("chunk 3 of 4 was lost: its worker was killed, 3 times in a row (")
    assert str(interrupted).endswith("run the same command again to resume")


def test_scoring_resumes_after_timeout(
    workspace: Path, cluster: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (
        "--trust-code",
        "--budget",
        "4",
        "--device",
        "cpu",
        "--backend",
        "ray",
        "--chunks",
        "4",
        "--timeout",
        "1h",
    )
    command = ("score", workspace / "run", workspace / "pool", *options, "--out", workspace / "late")

    def later() -> float:
        """The current time, plus two hours once two chunks are done."""
        return time.monotonic() + 7200.0 * (len(list((workspace / "late" / "chunks").glob("chunk-*"))) == 2)

    (workspace / "hold").touch()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray_backend, "time", SimpleNamespace(monotonic=later))
            assert ducats(*command) == 1
    finally:
        (workspace / "hold").unlink()
    message = capsys.readouterr().err
    assert "--timeout 1h reached with 2 of 4 chunks left" in " ".join(message.split())
    kept = {path: path.stat().st_mtime_ns for path in (workspace / "late" / "chunks").iterdir()}
    assert len(kept) == 2
    assert ducats(*command) == 0
    assert (workspace / "late" / "picks.csv").read_bytes() == (workspace / "local" / "picks.csv").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # not scored again


def test_lost_node_is_replaced(workspace: Path, cluster: Any) -> None:
    """Must run last: it removes the other node."""
    (node,) = cluster.worker_nodes
    with blocked_workers(workspace, "node") as workers:
        assert node.node_id in workers
        cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: TaskPool(platform.node).free_slots() == 1)


# ---- without a cluster


def test_only_needed_files_are_packed(workspace: Path) -> None:
    run = workspace / "run"
    names = {"config.yaml", "data.yaml", "model.safetensors"}
    assert ray_backend.pack_run_files(run, include_labels=False).keys() == names
    more = ray_backend.pack_run_files(run, include_labels=True)
    assert more["model.safetensors"] == (run / "model.safetensors").read_bytes()
    assert more.keys() - names >= {"pool.json"}
    assert any(name.startswith("labels/") for name in more)


def test_missing_ray_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'ducats\[ray\]'"):
        ray_connection.import_ray()


@pytest.mark.parametrize("time", ["", "soon", "0h", "-1h", "3 weeks"])
def test_invalid_duration(time: str) -> None:
    with pytest.raises(UserError, match="is not a duration"):
        ray_connection.parse_duration(time)


def connection_error(address: str) -> str:
    with pytest.raises(UserError) as caught, ray_connection.ray_session(address):
        raise AssertionError
    return str(caught.value)


@pytest.fixture
def disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this process is not connected to a cluster."""
    ray = pytest.importorskip("ray", reason="needs ducats[ray]")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_no_server_at_address(disconnected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection_error("localhost:1").startswith("no Ray cluster answers at --ray-address localhost:1 (")
    monkeypatch.setenv("RAY_ADDRESS", "localhost:1")
    assert connection_error("auto").startswith("no Ray cluster answers at --ray-address auto (")


@pytest.mark.parametrize("greeting", [b"SSH-2.0", b"", None])
def test_other_server_at_address(
    disconnected: None, greeting: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "CONNECT_TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                if greeting is None:
                    connection.recv(100)  # waits for the client, like an HTTP server
                else:
                    connection.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        message = connection_error(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "(the server there is not Ray)" in message


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265", "local", "10.0.0.1", ":1"]
)
def test_invalid_address(disconnected: None, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection_error(address).startswith(f"--ray-address {address} is not a host:port")
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert connection_error("auto").startswith(
        f"--ray-address {address} (from RAY_ADDRESS) is not a host:port"
    )


def test_ray_version_mismatch(disconnected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.0")

    monkeypatch.setattr(importlib.import_module("ray"), "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    message = connection_error("auto")
    assert "(Version mismatch: The cluster was started with: Ray: 2.0); install the same Python" in message


def test_ray_options_need_ray_backend(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ducats("score", "run", "pool", "--budget", "1", "--out", tmp_path, "--timeout", "2h") == 2
    assert "--timeout needs --backend ray" in capsys.readouterr().err
