"""A process of a cluster runs a command for somebody elsewhere, and says how it ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such thing on Windows: there, nobody waits
    fcntl = None  # type: ignore[assignment]

PATIENCE = 60.0  # seconds in which whoever did the same before us, and was lost, must be gone


def run_errand(
    command: Sequence[str], log: Path, lock: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run ``ducats`` in a process of its own; return its exit code, or minus the signal that ended it.

    It ends when this process does, whatever ends it.

    Args:
        command: what follows ``ducats``.
        log: what it prints is added here.
        lock: a file that a process at work on the same holds locked; it is waited for, some time.
        environment: on top of ours.
    """
    _wait_for(lock)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ducats.cli.child", str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # we are told to stop
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(lock: Path) -> None:
    """Wait until nobody holds a file; one who is lost may take a moment to notice, and to end."""
    until = time.monotonic() + PATIENCE
    while fcntl is not None and lock.exists() and time.monotonic() < until:
        with lock.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.2)
