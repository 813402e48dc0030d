"""Shutdown of the command: last message, exit code, and exit order of several processes."""

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console

from ducats.training import launch_environment
from ducats.training.peer_monitor import PEER_LOST_EXIT_CODE, PeerExit, PeerMonitor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PEER_EXIT_GRACE_SECONDS = 3.0  # within which the exit of a process that broke a collective is detected


class _ProcessState:
    monitor: PeerMonitor | None = None  # of a run with several processes, once they are connected
    exit_lock = threading.Lock()  # taken by the first thread that reports a lost process; never released


def launch_monitored(fabric: "Fabric") -> None:
    """Start the processes of a run and monitor them: if one dies, all exit with a message."""
    from ducats.training.launch import launch_processes

    _ProcessState.monitor = launch_processes(
        fabric, exit_on_peer_exit, lambda message: _print(message, "yellow")
    )


def exit_on_peer_exit(peer_exit: PeerExit) -> None:
    """Exit this process immediately because another one is gone."""
    exit_immediately(report_peer_exit(peer_exit))


def report_peer_exit(peer_exit: PeerExit) -> int:
    """Report that another process is gone, notify the remaining ones, and return the exit code."""
    _ProcessState.exit_lock.acquire()
    code, message = PEER_LOST_EXIT_CODE, peer_exit.message
    if peer_exit.code is not None:
        code = peer_exit.code
        message = message or f"process {peer_exit.rank + 1} ended with exit code {code}; see its message"
    elif not message:
        message = (
            f"process {peer_exit.rank + 1} of this run is gone (killed, or its host is down); run the same "
            "command again to resume"
        )
    monitor = _ProcessState.monitor
    # Rank 0 prints; rank 1 prints only if rank 0 is gone without a message of its own.
    if (
        monitor is None
        or monitor.rank == 0
        or (monitor.rank == 1 and peer_exit.rank == 0 and peer_exit.code is None)
    ):
        _print(f"ducats: {message}", "red")
    if monitor is not None:
        monitor.announce_exit(code, message)
    return code


def peer_exit_code() -> int | None:
    """Report a lost process and return the exit code if it caused this failure; otherwise return None."""
    monitor = _ProcessState.monitor
    peer_exit = None if monitor is None else monitor.peer_exit(PEER_EXIT_GRACE_SECONDS)
    return None if peer_exit is None else report_peer_exit(peer_exit)


def discard_stdout() -> int:
    """Stop writing to a closed pipe (`ducats labels RUN | head`) without an error."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - stays open until Python flushes it at exit
    return 0


def report_exit(message: str, style: str, code: int) -> int:
    """Print a message on one process only, notify the other processes, and return the exit code."""
    if is_reporter():
        _print(message, style)
    notify_exit(code, message)
    return code


def notify_exit(code: int, message: str = "") -> None:
    """Notify the other processes that this one exits on its own."""
    if _ProcessState.monitor is not None:
        _ProcessState.monitor.announce_exit(code, message.removeprefix("ducats: "))


def _print(message: str, style: str) -> None:
    Console(stderr=True).print(message, style=style, highlight=False, markup=False, soft_wrap=True)


def is_reporter() -> bool:
    """Return whether this process prints messages: rank 0; before processes are connected, local rank 0.

    Before that, a process started by this command reports its own failures: rank 0 would have failed earlier.
    """
    if _ProcessState.monitor is not None:
        return _ProcessState.monitor.rank == 0
    return launch_environment.detect_launcher() == "own" or launch_environment.node_and_local_rank()[1] == 0


def leave_process_group() -> bool:
    """Destroy the process group, if any; exiting without this may abort the process."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            monitor = _ProcessState.monitor
            if monitor is None or monitor.peer_exit() is None:  # otherwise the group is broken
                distributed.destroy_process_group()
            return True
    return False


def exit_immediately(code: int) -> None:
    """Exit without Python's finalisation: threads of a broken group could abort it with another exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for_launcher_exit(seconds: float = 20.0) -> None:
    """Wait until the process that started this one has exited, so that its exit code is the command's.

    All processes learn of a failure and exit in the same way, but Fabric's observer would kill the first one.
    """
    deadline = time.monotonic() + seconds
    while os.getppid() == launch_environment.parent_pid() and time.monotonic() < deadline:
        time.sleep(0.05)
