"""Launch of several processes, with detection of processes that die."""

import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_fabric import Fabric

from ducats.training import launch_environment
from ducats.training.distributed import all_ranks_or_raise, on_rank_zero
from ducats.training.peer_monitor import PeerExit, PeerMonitor, PeerSockets, accept_peers, connect, listen
from ducats.utils.errors import UserError

POLL_SECONDS = 0.2  # seconds between two checks of the processes
NOTICE_AFTER_SECONDS = 30.0  # seconds of waiting before a notice is printed
FABRIC_OBSERVER_THREAD = "child-process-observer"  # name of Fabric's thread


def launch_processes(
    fabric: Fabric, on_lost: Callable[[PeerExit], object], notify: Callable[[str], object]
) -> PeerMonitor | None:
    """Start the processes, or join those already started; return when all are connected.

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
    with _interruptible(), _watch_startup(fabric, on_lost, notify):
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

        def connect_ranks() -> PeerSockets:
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
            fabric.global_rank, fabric.world_size, all_ranks_or_raise(fabric, connect_ranks), on_lost
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
def _watch_startup(
    fabric: Fabric, on_lost: Callable[[PeerExit], object], notify: Callable[[str], object]
) -> Iterator[None]:
    """Until all processes are connected, detect the death of a child or of the parent."""
    connected, parent = threading.Event(), launch_environment.parent_pid()
    notice_pending = launch_environment.node_and_local_rank()[1] == 0
    notice_time = time.monotonic() + NOTICE_AFTER_SECONDS
    if "LOCAL_RANK" not in os.environ:  # not started as one of several: this process starts the others
        os.environ[launch_environment.PARENT_PID_VARIABLE] = str(os.getpid())

    def watch() -> None:
        nonlocal notice_pending
        while not connected.wait(POLL_SECONDS):
            if notice_pending and time.monotonic() > notice_time:
                notify(
                    f"waiting at {_rendezvous_address()} for all {fabric.world_size} processes; press Ctrl-C "
                    "to stop"
                )
                notice_pending = False
            if parent is not None and os.getppid() != parent:
                on_lost(PeerExit(0, None, ""))
            for number, process in enumerate(_child_processes(fabric), start=fabric.global_rank + 1):
                if process.poll():
                    on_lost(PeerExit(number, process.returncode if process.returncode > 0 else None, ""))

    threading.Thread(target=watch, daemon=True, name="start").start()
    try:
        yield
    finally:
        connected.set()


def _child_processes(fabric: Fabric) -> list[Any]:
    """Return the processes that Fabric started, and disable Fabric's own observer.

    The observer checks every five seconds and kills all processes, including this one, without a message.
    """
    for thread in threading.enumerate():
        if thread.name == FABRIC_OBSERVER_THREAD:
            thread._child_processes = []  # type: ignore[attr-defined]
    return list(getattr(fabric.strategy.launcher, "procs", ()))
