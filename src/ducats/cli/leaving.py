"""Shutdown of the command: last message, exit code, and exit order of several processes."""

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console

from ducats.engine import hosts
from ducats.engine.lifeline import LOST, Ended, Lifeline

if TYPE_CHECKING:
    from lightning_fabric import Fabric

NOTICE = 3.0  # seconds within which the exit of a process that broke a collective is detected


class _Held:
    line: Lifeline | None = None  # of a run with several processes, once they are connected
    ending = threading.Lock()  # taken by the first thread that reports a lost process; never released


def launch(fabric: "Fabric") -> None:
    """Start the processes of a run and monitor them: if one dies, all exit with a message."""
    from ducats.engine.launching import launch as start

    _Held.line = start(fabric, end_at_once, lambda sentence: _print(sentence, "yellow"))


def end_at_once(ended: Ended) -> None:
    """Exit this process immediately because another one is gone."""
    leave_at_once(give_up(ended))


def give_up(ended: Ended) -> int:
    """Report that another process is gone, notify the remaining ones, and return the exit code."""
    _Held.ending.acquire()
    code, sentence = LOST, ended.said
    if ended.code is not None:
        code = ended.code
        sentence = sentence or f"process {ended.rank + 1} ended with exit code {code}; see its message"
    elif not sentence:
        sentence = (
            f"process {ended.rank + 1} of this run is gone (killed, or its host is down); run the same "
            "command again to resume"
        )
    line = _Held.line
    # Rank 0 prints; rank 1 prints only if rank 0 is gone without a message of its own.
    if line is None or line.rank == 0 or (line.rank == 1 and ended.rank == 0 and ended.code is None):
        _print(f"ducats: {sentence}", "red")
    if line is not None:
        line.leave(code, sentence)
    return code


def other_end() -> int | None:
    """Report a lost process and return the exit code if it caused this failure; otherwise return None."""
    ended = None if _Held.line is None else _Held.line.missing(NOTICE)
    return None if ended is None else give_up(ended)


def stop_writing() -> int:
    """Stop writing to a closed pipe (`ducats labels RUN | head`) without an error."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - stays open until Python flushes it at exit
    return 0


def say(sentence: str, style: str, code: int) -> int:
    """Print a message on one process only, notify the other processes, and return the exit code."""
    if speaks():
        _print(sentence, style)
    farewell(code, sentence)
    return code


def farewell(code: int, sentence: str = "") -> None:
    """Notify the other processes that this one exits on its own."""
    if _Held.line is not None:
        _Held.line.leave(code, sentence.removeprefix("ducats: "))


def _print(sentence: str, style: str) -> None:
    Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def speaks() -> bool:
    """Return whether this process prints messages: rank 0; before processes are connected, local rank 0.

    Before that, a process started by this command reports its own failures: rank 0 would have failed earlier.
    """
    if _Held.line is not None:
        return _Held.line.rank == 0
    return hosts.launcher() == "own" or hosts.place()[1] == 0


def leave_together() -> bool:
    """Destroy the process group, if any; exiting without this may abort the process."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            if _Held.line is None or _Held.line.missing() is None:  # otherwise the group is broken
                distributed.destroy_process_group()
            return True
    return False


def leave_at_once(code: int) -> None:
    """Exit without Python's finalisation: threads of a broken group could abort it with another exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def let_the_first_process_leave(seconds: float = 20.0) -> None:
    """Wait until the process that started this one has exited, so that its exit code is the command's.

    All processes learn of a failure and exit in the same way, but Fabric's observer would kill the first one.
    """
    until = time.monotonic() + seconds
    while os.getppid() == hosts.parent() and time.monotonic() < until:
        time.sleep(0.05)
