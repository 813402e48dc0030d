"""Start the processes of a run on this host, and connect all ranks."""

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from lightning_fabric import Fabric
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, start_processes

from ducats.training import launch_environment
from ducats.training.distributed import all_ranks_or_raise, on_rank_zero
from ducats.training.launch_environment import World
from ducats.training.peer_monitor import (
    PEER_LOST_EXIT_CODE,
    PeerExit,
    PeerMonitor,
    PeerSockets,
    accept_peers,
    connect,
    listen,
)
from ducats.utils.child_process import CHILD_MODULE
from ducats.utils.errors import UserError
from ducats.utils.network import free_port
from ducats.utils.resources import available_cores

POLL_SECONDS = 0.1  # seconds between two checks of the processes
NOTICE_AFTER_SECONDS = 30.0  # seconds of waiting before a notice is printed


def run_local_ranks(world: World, arguments: Sequence[str], on_killed: Callable[[int], object]) -> int:
    """Run a `ducats` command in one process per rank of this host; if one fails, torch ends the others.

    Args:
        on_killed: called with the rank of a process that was killed.

    Returns:
        The exit code of the command.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the caller reports failures
    # A signal that the shell ignores, as in the background, stays ignored.
    handled = [
        number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) != signal.SIG_IGN
    ]
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(number.name for number in handled)
    ranks = range(world.processes_per_node)
    shared = {
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT") or str(free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, available_cores() // len(ranks))),
        launch_environment.STARTED_RANKS_VARIABLE: str(len(ranks)),
    }
    with TemporaryDirectory() as log_dir:
        processes = start_processes(
            "ducats",
            sys.executable,
            args=dict.fromkeys(ranks, ("-m", CHILD_MODULE, str(os.getpid()), *arguments)),
            envs={rank: {**shared, "LOCAL_RANK": str(rank)} for rank in ranks},
            logs_specs=DefaultLogsSpecs(log_dir),
        )
        try:
            result = processes.wait(period=POLL_SECONDS)
        except SignalException as caught:
            processes.close(caught.sigval)
            return 128 + caught.sigval
    assert result is not None
    failures = list(result.failures.values())
    if not failures:
        return 0
    # Torch ends the other ranks with SIGTERM.
    killed = (failure for failure in failures if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM)
    cause = next(killed, failures[0])
    if cause.exitcode > 0:  # the rank has reported it
        return cause.exitcode
    on_killed(launch_environment.node_and_local_rank()[0] * len(ranks) + cause.local_rank)
    return PEER_LOST_EXIT_CODE


def connect_ranks(
    fabric: Fabric, on_lost: Callable[[PeerExit], object], notify: Callable[[str], object]
) -> PeerMonitor | None:
    """Connect this process to the other ranks.

    Args:
        fabric: launched here.
        on_lost: called from another thread when another process dies; it should end this process.
        notify: called from another thread with a notice if the other processes take long to start.

    Returns:
        The monitor of the other processes; None if there are none.
    """
    if fabric.world_size == 1:
        fabric.launch()
        return None
    _check_address()
    with _interruptible(), _notice_if_slow(fabric, notify):
        try:
            fabric.launch()
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(
                f"{fabric.world_size} processes could not connect at {_rendezvous_address()} ({why}); start "
                "the same command on every host, with a MASTER_ADDR that all can reach and a free MASTER_PORT"
            ) from error
        address = os.environ["MASTER_ADDR"]  # set by Fabric
        listeners: list[socket.socket] = []

        def open_listener() -> tuple[int, str]:
            listeners.append(listen(address))
            return listeners[0].getsockname()[1], secrets.token_hex(16)

        port, token = on_rank_zero(fabric, open_listener)

        def open_connections() -> PeerSockets:
            try:
                if fabric.is_global_zero:
                    return accept_peers(listeners[0], fabric.world_size, token)
                return connect(address, port, token, fabric.global_rank)
            except OSError as error:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} cannot connect to {address}, "
                    f"port {port} ({error}); allow connections between the hosts on all ports"
                ) from error

        return PeerMonitor(
            fabric.global_rank, fabric.world_size, all_ranks_or_raise(fabric, open_connections), on_lost
        )


def _rendezvous_address() -> str:
    return ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))


def _check_address() -> None:
    """Raise if MASTER_ADDR cannot be resolved: torch would retry for half an hour."""
    if (address := os.environ.get("MASTER_ADDR")) is None:  # Fabric sets it
        return
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR is {address!r}, which this host cannot resolve ({error.strerror}); set it to the "
            "name or address of host 0"
        ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end this process while it waits for others: Python's handler would run only afterwards."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _notice_if_slow(fabric: Fabric, notify: Callable[[str], object]) -> Iterator[None]:
    """Print a notice on each host if the other processes take long to connect."""
    notice = f"waiting at {_rendezvous_address()} for all {fabric.world_size} processes; press Ctrl-C to stop"
    timer = threading.Timer(NOTICE_AFTER_SECONDS, notify, [notice])
    timer.daemon = True
    if launch_environment.node_and_local_rank()[1] == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
