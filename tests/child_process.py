"""Run part of a test in a forked process, which may be killed, and fork the children of commands."""

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ducats.utils import child_process


def run_in_child(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked process; return its exit status, or minus the signal that ended it."""
    _, status = os.waitpid(fork(act), 0)
    return os.waitstatus_to_exitcode(status)


def fork(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked process; return its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            # A fork loses torch's thread pool, and recreating it from two threads at once fails.
            torch.set_num_threads(1)
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def fork_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the children of a command from this process, which has imported everything."""
    start = child_process.start_warm

    def start_forked(function: str, arguments: tuple[Any, ...], *more: Any) -> Any:
        return start("child_process:call", (function, *arguments), *more)

    monkeypatch.setattr(child_process, "_warm_context", lambda: multiprocessing.get_context("fork"))
    for module in ("ducats.sweep.local_backend", "ducats.deploy.scoring.local_backend"):
        monkeypatch.setattr(f"{module}.start_warm", start_forked)


def call(function: str, *arguments: Any) -> None:
    """Call a function in a forked process whose output is redirected."""
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)


def wait_until(true: Callable[[], object], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def is_unlocked(path: Path) -> bool:
    """Whether a file is unlocked: the process that locked it has ended."""
    import fcntl  # not on Windows, where no test comes here

    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def has_ended(process: int) -> bool:
    """Whether a process has ended or is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
