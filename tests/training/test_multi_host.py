"""Runs on several hosts, simulated on this machine with one process each."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
from PIL import Image

import ranks
from conftest import QUICK
from ducats.cli import main, shutdown
from ducats.runfolder.run_folder import RunFolder
from ducats.training import launch
from ducats.training.peer_monitor import PEER_LOST_EXIT_CODE
from ducats.utils.network import free_port
from ranks import PEER_GONE_MESSAGE, kill_in_epoch, outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SETTINGS = (*QUICK, "train.epochs=3", "acquisition={after_epochs: [1], budget: 10}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run with two processes on one host."""
    folder = tmp_path_factory.mktemp("one host") / "run"
    done = ranks.run_in_ranks(ranks.command(SETTINGS, folder, "--devices", "2"), folder.parent / "output")
    assert done.codes == [0, 0], done.outputs
    return outcome(folder)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        (ranks.hosts_by_hand, ("--nodes", "2")),
        (ranks.torchrun, ()),
        (ranks.slurm, ()),
    ],
)
def test_two_hosts_give_the_results_of_two_processes(
    tmp_path: Path, undisturbed: dict[str, Any], environment: ranks.Environment, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    run = ranks.command(SETTINGS, folder, *options)
    done = ranks.run_in_ranks(run, tmp_path / "output", environment=environment)
    assert done.codes == [0, 0], done.outputs
    assert outcome(folder) == undisturbed
    assert "10 labels acquired" in done.outputs[0]
    assert "labels acquired" not in done.outputs[1]


def test_a_run_resumes_after_a_host_died(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    folder, output = tmp_path / "run", tmp_path / "output"
    run = ranks.command(SETTINGS, folder)
    killed = ranks.run_in_ranks(run, output, environment=ranks.slurm, setup=kill_in_epoch(1))
    assert killed.codes == [PEER_LOST_EXIT_CODE, -9]
    assert killed.outputs[0].count(PEER_GONE_MESSAGE.format(2)) == 1
    done = ranks.run_in_ranks(run, output, environment=ranks.slurm)
    assert done.codes == [0, 0], done.outputs
    assert outcome(folder) == undisturbed


def test_hosts_without_a_shared_folder_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducats.run.checkpoint.check_shared_folder.__defaults__", (0.2,))

    def act(rank: int) -> None:
        main(ranks.command(SETTINGS, tmp_path / f"host {rank}", "--nodes", "2"))

    done = ranks.in_ranks(act, tmp_path / "output", environment=ranks.hosts_by_hand)
    assert done.codes == [2, 2]
    assert done.outputs[0].count("process 2 of 2 does not see the files that rank 0 wrote to") == 1
    assert "use an --out that all hosts share" in done.outputs[0]
    assert not RunFolder(tmp_path / "host 0").finished


def test_missing_data_on_one_host_is_reported_by_rank_0(tmp_path: Path) -> None:
    target, source = tmp_path / "target", tmp_path / "source of host 1"
    for number, folder in enumerate((target, source / "cat", source / "dog")):
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(folder / "image.png")

    def act(rank: int) -> None:
        own_source = tmp_path / f"source of host {rank + 1}"
        main(
            [
                *(
                    "run",
                    "--source",
                    str(own_source),
                    "--target",
                    str(target),
                    "--set",
                    "model.name=small_cnn",
                ),
                *("--rounds", "0", "--nodes", "2", "--out", str(tmp_path / "run")),
            ]
        )

    done = ranks.in_ranks(act, tmp_path / "output", environment=ranks.hosts_by_hand)
    assert done.codes == [2, 2], done.outputs
    assert done.outputs[0].count("source of host 2") == 1, done.outputs
    assert "ducats: " not in done.outputs[1]


def test_each_host_reports_contradicting_options_once(tmp_path: Path) -> None:
    run = ranks.command(SETTINGS, tmp_path / "run", "--devices", "4")
    done = ranks.run_in_ranks(run, tmp_path / "output", environment=ranks.torchrun)
    assert done.codes == [2, 2]
    for output in done.outputs:
        assert output.count("ducats: --devices is 4, but torchrun started 1 process(es)") == 1


def test_real_torchrun_on_two_hosts(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    folder, port = tmp_path / "run", free_port()

    def torchrun(node: int) -> None:
        torch.distributed.run.main(
            [
                *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
                *("--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("-m", "ducats", *ranks.command(SETTINGS, folder)),
            ]
        )

    done = ranks.in_ranks(torchrun, tmp_path / "output", environment=lambda *_: {"OMP_NUM_THREADS": "1"})
    assert done.codes == [0, 0], done.outputs
    assert outcome(folder) == undisturbed


def test_an_unknown_address_raises_at_once(tmp_path: Path) -> None:
    unknown = {**ranks.hosts_by_hand(1, 2, 29500), "MASTER_ADDR": "first.invalid"}
    run = ranks.command(SETTINGS, tmp_path / "run", "--nodes", "2")
    done = ranks.run_in_ranks(run, tmp_path / "output", 1, lambda *_: unknown)
    assert done.codes == [2]
    assert (
        done.outputs[0].count("ducats: MASTER_ADDR is 'first.invalid', which this host cannot resolve") == 1
    )


def test_a_waiting_host_prints_a_notice_and_can_be_interrupted(tmp_path: Path) -> None:
    def impatient(_: int) -> None:
        genuine = shutdown._print
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs do not have it

        def print_and_interrupt(sentence: str, style: str) -> None:
            genuine(sentence, style)
            os.kill(os.getpid(), signal.SIGINT)

        setattr(shutdown, "_print", print_and_interrupt)  # noqa: B010 - as monkeypatch would set it
        launch.NOTICE_AFTER_SECONDS = 0.0

    run = ranks.command(SETTINGS, tmp_path / "run", "--nodes", "2")
    done = ranks.run_in_ranks(run, tmp_path / "output", 1, ranks.hosts_by_hand, setup=impatient)
    assert done.codes == [-signal.SIGINT]
    assert "\nwaiting at 127.0.0.1:" in done.outputs[0]
    assert done.outputs[0].count("for all 2 processes; press Ctrl-C") == 1
