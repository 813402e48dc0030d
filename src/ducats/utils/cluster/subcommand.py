"""`ducats` commands as subprocesses on a cluster node."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ducats.utils.child_process import start_command
from ducats.utils.files import try_lock

LOCK_TIMEOUT_SECONDS = 60.0  # seconds to wait for a lost process that still holds the lock


def run_subcommand(
    command: Sequence[str], log: Path, lock: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run ``ducats`` in a subprocess; return its exit code, or minus the signal that ended it.

    The subprocess ends with this process, even if this one is killed.

    Args:
        command: arguments of ``ducats``.
        log: its output is appended to this file.
        lock: file that a process with the same work holds locked; waited for, up to
            ``LOCK_TIMEOUT_SECONDS``.
        environment: added to the environment of this process.
    """
    _wait_for_lock(lock)
    log.parent.mkdir(parents=True, exist_ok=True)
    process = start_command(command, log, environment or {})
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # interrupted
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_lock(lock: Path) -> None:
    """Wait until a file is unlocked; a lost process may take a moment to notice and to end."""
    if lock.exists() and (held := try_lock(lock, LOCK_TIMEOUT_SECONDS)) is not None:
        held.release()
