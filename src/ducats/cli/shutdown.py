"""Shutdown of the command: last message, exit code, and exit order of several processes."""

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ducats.cli.base import print_line
from ducats.training import launch_environment
from ducats.utils.terminal import TerminalConsole

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from ducats.training.peer_monitor import PeerExit, PeerMonitor

PEER_EXIT_GRACE_SECONDS = 3.0  # within which the exit of a process that broke a collective is detected


class _ProcessState:
    arguments: Sequence[str] = ()  # arguments of the command
    monitor: "PeerMonitor | None" = None  # of a run with several processes, once they are connected
    exit_lock = threading.Lock()  # taken by the first thread that reports a lost process; never released


def remember_arguments(arguments: Sequence[str] | None) -> None:
    """Remember the arguments of this command, for further processes of a run."""
    _ProcessState.arguments = sys.argv[1:] if arguments is None else arguments


def repeat_in_local_ranks(world: launch_environment.World) -> NoReturn:
    """Run this command in one process per rank of this host, and exit."""
    from ducats.training.launch import run_local_ranks

    exit_immediately(
        run_local_ranks(
            world, _ProcessState.arguments, lambda rank: _print(f"ducats: {_lost_message(rank)}", "red")
        )
    )


def connect_monitored(fabric: "Fabric") -> None:
    """Connect this process to the other ranks and monitor them: if one dies, all exit with a message."""
    from ducats.training.launch import connect_ranks

    _ProcessState.monitor = connect_ranks(
        fabric, exit_on_peer_exit, lambda message: _print(message, "yellow")
    )


def exit_on_peer_exit(peer_exit: "PeerExit") -> None:
    """Exit this process immediately because another one is gone."""
    exit_immediately(report_peer_exit(peer_exit))


def report_peer_exit(peer_exit: "PeerExit") -> int:
    """Report that another process is gone, notify the remaining ones, and return the exit code."""
    from ducats.training.peer_monitor import PEER_LOST_EXIT_CODE

    _ProcessState.exit_lock.acquire()
    code, message = PEER_LOST_EXIT_CODE, peer_exit.message
    if peer_exit.code is not None:
        code = peer_exit.code
        message = message or f"process {peer_exit.rank + 1} ended with exit code {code}; see its message"
    elif not message:
        message = _lost_message(peer_exit.rank)
    monitor, is_killed = _ProcessState.monitor, peer_exit.code is None
    # Rank 0 prints; rank 1 prints only if rank 0 is gone without a message of its own.
    prints = monitor is None or monitor.rank == 0 or (monitor.rank == 1 and peer_exit.rank == 0 and is_killed)
    if prints and not (is_killed and launch_environment.has_same_parent(peer_exit.rank)):
        _print(f"ducats: {message}", "red")
    if monitor is not None:
        monitor.announce_exit(code, message)
    return code


def _lost_message(rank: int) -> str:
    return (
        f"process {rank + 1} of this run is gone (killed, or its host is down); run the same command again "
        "to resume"
    )


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
    print_line(message, style, output=TerminalConsole(stderr=True))


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


def exit_immediately(code: int) -> NoReturn:
    """Exit without Python's finalisation: it takes seconds, and threads of a broken group could abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for_rank_zero(seconds: float = 20.0) -> None:
    """Wait until rank 0 has reported the failure: its launcher may end it once another rank has failed."""
    monitor = _ProcessState.monitor
    if monitor is not None and monitor.rank > 0:
        monitor.peer_exit(seconds)
