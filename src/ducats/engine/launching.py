"""How several processes are started and meet, and how each hears that another one is gone."""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning_fabric import Fabric

from ducats.engine import hosts
from ducats.engine.lifeline import Ended, Lifeline, Peers, knock, let_in, open_door
from ducats.engine.processes import on_chief, together
from ducats.errors import UserError

BETWEEN = 0.2  # seconds between two looks at who is there
OBSERVER = "child-process-observer"  # Fabric's thread, by its name


def launch(fabric: Fabric, lost: Callable[[Ended], object]) -> Lifeline | None:
    """Start the processes, or join those that were started; return when all are there.

    Args:
        fabric: what to launch.
        lost: called, in a thread of its own, when another process is gone; it should end this one.

    Returns:
        What holds the processes together, if there are several.
    """
    if fabric.world_size == 1:
        fabric.launch()
        return None
    with _watched(fabric, lost):
        try:
            fabric.launch()
        except (RuntimeError, ValueError) as error:
            where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
            why = " ".join(str(error).split())[:200]
            raise UserError(
                f"{fabric.world_size} processes did not meet at {where} ({why}): "
                "start the same command on every host, with an address that all can reach"
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


@contextmanager
def _watched(fabric: Fabric, lost: Callable[[Ended], object]) -> Iterator[None]:
    """Hear of the death of a process that this one started, or that started it, until all have met."""
    met, parent = threading.Event(), hosts.parent()
    if "LOCAL_RANK" not in os.environ:  # nobody started this one as one of several: it starts the others
        os.environ[hosts.FIRST] = str(os.getpid())

    def watch() -> None:
        while not met.wait(BETWEEN):
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
