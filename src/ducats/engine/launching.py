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

from ducats.engine import hosts
from ducats.engine.lifeline import Ended, Lifeline, Peers, knock, let_in, open_door
from ducats.engine.processes import on_chief, together
from ducats.errors import UserError

BETWEEN = 0.2  # seconds between two checks of the processes
LONG = 30.0  # seconds of waiting before a notice is printed
OBSERVER = "child-process-observer"  # name of Fabric's thread


def launch(fabric: Fabric, lost: Callable[[Ended], object], tell: Callable[[str], object]) -> Lifeline | None:
    """Start the processes, or join those already started; return when all are connected.

    Args:
        fabric: launched here.
        lost: called from another thread when another process dies; it should end this process.
        tell: called from another thread with a notice if the other processes take long to start.

    Returns:
        The monitor of the other processes; None if there are none.
    """
    if fabric.world_size == 1:
        fabric.launch()
        return None
    _check_address()
    with _interruptible(), _watched(fabric, lost, tell):
        try:
            fabric.launch()
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(
                f"{fabric.world_size} processes could not connect at {_where()} ({why}); start the same "
                "command on every host, with a MASTER_ADDR that all can reach and a free MASTER_PORT"
            ) from error
        address = os.environ["MASTER_ADDR"]  # set by Fabric
        doors: list[socket.socket] = []

        def open_mine() -> tuple[int, str]:
            doors.append(open_door(address))
            return doors[0].getsockname()[1], secrets.token_hex(16)

        port, token = on_chief(fabric, open_mine)

        def meet() -> Peers:
            try:
                if fabric.is_global_zero:
                    return let_in(doors[0], fabric.world_size, token)
                return knock(address, port, token, fabric.global_rank)
            except OSError as error:
                raise UserError(
                    f"process {fabric.global_rank + 1} of {fabric.world_size} cannot connect to {address}, "
                    f"port {port} ({error}); allow connections between the hosts on all ports"
                ) from error

        return Lifeline(fabric.global_rank, fabric.world_size, together(fabric, meet), lost)


def _where() -> str:
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
def _watched(
    fabric: Fabric, lost: Callable[[Ended], object], tell: Callable[[str], object]
) -> Iterator[None]:
    """Until all processes are connected, detect the death of a child or of the parent."""
    met, parent = threading.Event(), hosts.parent()
    speaks, due = hosts.place()[1] == 0, time.monotonic() + LONG
    if "LOCAL_RANK" not in os.environ:  # not started as one of several: this process starts the others
        os.environ[hosts.FIRST] = str(os.getpid())

    def watch() -> None:
        nonlocal speaks
        while not met.wait(BETWEEN):
            if speaks and time.monotonic() > due:
                tell(f"waiting at {_where()} for all {fabric.world_size} processes; press Ctrl-C to stop")
                speaks = False
            if parent is not None and os.getppid() != parent:
                lost(Ended(0, None, ""))
            for number, process in enumerate(_children(fabric), start=fabric.global_rank + 1):
                if process.poll():
                    lost(Ended(number, process.returncode if process.returncode > 0 else None, ""))

    threading.Thread(target=watch, daemon=True, name="start").start()
    try:
        yield
    finally:
        met.set()


def _children(fabric: Fabric) -> list[Any]:
    """Return the processes that Fabric started, and disable Fabric's own observer.

    The observer checks every five seconds and kills all processes, including this one, without a message.
    """
    for thread in threading.enumerate():
        if thread.name == OBSERVER:
            thread._child_processes = []  # type: ignore[attr-defined]
    return list(getattr(fabric.strategy.launcher, "procs", ()))
