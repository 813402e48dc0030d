"""Several processes of one run in a test, forked to start at once with all imports done."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ducats.cli import main
from ducats.ledger import load_ledger
from ducats.runfolder import records
from ducats.runfolder.run_folder import RunFolder
from ducats.training.step import Step
from ducats.utils.network import free_port

HANG_SECONDS = 180  # seconds after which a hanging process is killed
Environment = Callable[[int, int, int], Mapping[str, str]]  # (rank, world size, port) -> variables

Setup = Callable[[int], object]  # called first in each process, with its rank
PEER_GONE_MESSAGE = "ducats: process {} of this run is gone"


def by_hand(rank: int, world: int, port: int) -> dict[str, str]:
    """Variables of processes started by hand on one host."""
    return {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def hosts_by_hand(rank: int, world: int, port: int) -> dict[str, str]:
    """Variables of hosts started by hand, with one process each."""
    return {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    """Variables set by torchrun on hosts with one process each."""
    return {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def slurm(rank: int, world: int, port: int) -> dict[str, str]:
    """Variables set by srun on hosts with one task each; the port follows from the job ID."""
    return {
        "SLURM_JOB_ID": f"77{port % 10000:04d}",
        "SLURM_JOB_NAME": "sweep",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": str(world),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": str(world),
        "SLURM_NODELIST": "localhost",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(rank),
    }


@dataclass
class RankResults:
    """Exit codes and output of the processes."""

    codes: list[int] = field(default_factory=list)  # exit codes, or minus the signal that ended one
    outputs: list[str] = field(default_factory=list)  # stdout and stderr of each


def in_ranks(
    fn: Callable[[int], object], folder: Path, world: int = 2, environment: Environment = by_hand
) -> RankResults:
    """Call ``fn`` in each process and wait for all.

    Args:
        fn: called with the rank; returns the exit code, None for 0.
        folder: folder for the output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, children, logs = free_port(), [], [folder / f"{rank}.txt" for rank in range(world)]
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(world):
        child = os.fork()
        if child == 0:
            _run_rank(rank, fn, environment(rank, world, port), logs[rank])
        children.append(child)
    ranks = RankResults()
    try:
        for child in children:
            _, status = os.waitpid(child, 0)
            ranks.codes.append(os.waitstatus_to_exitcode(status))
    finally:
        for child in children[len(ranks.codes) :]:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    ranks.outputs = [log.read_text() for log in logs]
    return ranks


def _run_rank(rank: int, fn: Callable[[int], object], environment: Mapping[str, str], log: Path) -> None:
    code: object = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update(environment)
        signal.alarm(HANG_SECONDS)
        warnings.simplefilter(
            "default"
        )  # the filters of a test do not apply to the libraries of a whole command
        # A fork loses torch's thread pool, and two threads that recreate it at once fail.
        torch.set_num_threads(1)
        code = fn(rank) or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def command(settings: Sequence[str], out: Path, *more: str) -> list[str]:
    """Return the arguments of ``ducats run`` with settings."""
    flat = [part for setting in settings for part in ("--set", setting)]
    return ["run", "--method", "duc", *flat, "--out", str(out), *more]


def run_in_ranks(
    arguments: Sequence[str],
    folder: Path,
    world: int = 2,
    environment: Environment = by_hand,
    setup: Setup = lambda _: None,
) -> RankResults:
    """Run ``ducats`` in each process.

    Args:
        arguments: of ``ducats``.
        folder: folder for the output.
        setup: called first in each process, with its rank.
    """

    def run(rank: int) -> None:
        setup(rank)
        main(arguments)

    return in_ranks(run, folder, world, environment)


def outcome(folder: Path) -> dict[str, Any]:
    """Return the results of a run, without time and memory."""
    spent = ("seconds", "peak_memory_bytes")
    run_folder = RunFolder(folder)
    return {
        "labels": list(load_ledger(run_folder).entries()),
        "lines": [
            {k: v for k, v in r.items() if k not in spent}
            for r in records.read_records(run_folder.metrics_path)
        ],
        "model": (folder / "model.safetensors").read_bytes(),
        "requests": [p.read_bytes() for p in sorted((folder / "requests").glob("*"))],
        "drafts": [p.name for p in folder.rglob("*.part")],
    }


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_epoch(victim: int) -> Setup:
    """Die in the fifth step, in the middle of the second epoch."""

    def setup(rank: int) -> None:
        genuine, calls = Step.__call__, 0

        def call(self: Step, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 5 and rank == victim:
                die()
            return genuine(self, *arguments)

        Step.__call__ = call  # type: ignore[method-assign,assignment]

    return setup
