"""How several processes are started and meet, and how each hears that another one is gone."""

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

BETWEEN = 0.2  # seconds between two looks at who is there
LONG = 30.0  # seconds to meet, after which a word is due
OBSERVER = "child-process-observer"  # Fabric's thread, by its name


def launch(fabric: Fabric, lost: Callable[[Ended], object], tell: Callable[[str], object]) -> Lifeline | None:
    """Start the processes, or join those that were started; return when all are there.

    Args:
        fabric: what to launch.
        lost: called, in a thread of its own, when another process is gone; it should end this one.
        tell: given a sentence, in a thread of its own, if the others take long to come.

    Returns:
        What holds the processes together, if there are several.
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
                f"{fabric.world_size} processes did not meet at {_where()} ({why}): start the same command "
                "on every host, with an address that all can reach and a MASTER_PORT that is free there"
            ) from error
        address = os.environ["MASTER_ADDR"]  # which Fabric has set
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
                    f"process {fabric.global_rank + 1} of {fabric.world_size} has no connection through "
                    f"{address}, port {port} ({error}): let hosts reach each other on all ports"
                ) from error

        return Lifeline(fabric.global_rank, fabric.world_size, together(fabric, meet), lost)


def _where() -> str:
    return ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))


def _check_address() -> None:
    """Refuse an address that says nothing here: torch would try it for half an hour."""
    if (address := os.environ.get("MASTER_ADDR")) is None:  # Fabric will set it
        return
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR is {address!r}, which this host cannot find ({error.strerror}): set it to the "
            "first host's name or address"
        ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end this process at once while it waits for others: Python would not hear it before."""
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
    """Hear of the death of a process that this one started, or that started it, until all have met."""
    met, parent = threading.Event(), hosts.parent()
    speaks, due = hosts.place()[1] == 0, time.monotonic() + LONG
    if "LOCAL_RANK" not in os.environ:  # nobody started this one as one of several: it starts the others
        os.environ[hosts.FIRST] = str(os.getpid())

    def watch() -> None:
        nonlocal speaks
        while not met.wait(BETWEEN):
            if speaks and time.monotonic() > due:
                tell(f"waiting at {_where()} for all {fabric.world_size} processes; Ctrl-C ends it")
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
    """The processes that this one started, if Fabric tells; from now on they are watched by us alone.

    Fabric's own observer looks every five seconds, and kills all processes, this one too, without a word.
    """
    for thread in threading.enumerate():
        if thread.name == OBSERVER:
            thread._child_processes = []  # type: ignore[attr-defined]
    return list(getattr(fabric.strategy.launcher, "procs", ()))
