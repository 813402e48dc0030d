"""How the command ends: what is said last, and in which order several processes go."""

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

NOTICE = 3.0  # seconds in which a death is known that made an exchange fail


class _Held:
    line: Lifeline | None = None  # of a run in several processes, once they have met
    ending = threading.Lock()  # of whoever found out first that another process is gone; it is not released


def launch(fabric: "Fabric") -> None:
    """Start the processes of a run; from now on, one that dies ends them all, with a sentence."""
    from ducats.engine.launching import launch as start

    _Held.line = start(fabric, end_at_once, lambda sentence: _print(sentence, "yellow"))


def end_at_once(ended: Ended) -> None:
    """End this process because another one is gone, whatever it is doing."""
    leave_at_once(give_up(ended))


def give_up(ended: Ended) -> int:
    """Say that another process is gone, and tell it to those that are left; return the exit code."""
    _Held.ending.acquire()
    code, sentence = LOST, ended.said
    if ended.code is not None:
        code = ended.code
        sentence = sentence or f"process {ended.rank + 1} ended with exit code {code}: it has said why"
    elif not sentence:
        sentence = (
            f"process {ended.rank + 1} of this run is gone (killed, or its host is down), so it ends here: "
            "the same command goes on"
        )
    line = _Held.line
    # Who is left of the first two speaks. What the first one says has been said.
    if line is None or line.rank == 0 or (line.rank == 1 and ended.rank == 0 and ended.code is None):
        _print(f"ducats: {sentence}", "red")
    if line is not None:
        line.leave(code, sentence)
    return code


def other_end() -> int | None:
    """The exit code, and a sentence, if another process's end is why this one failed; None if it is not."""
    ended = None if _Held.line is None else _Held.line.missing(NOTICE)
    return None if ended is None else give_up(ended)


def stop_writing() -> int:
    """Whoever read what is printed has enough (`ducats labels RUN | head`): no error."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the end, where Python flushes it
    return 0


def say(sentence: str, style: str, code: int) -> int:
    """Say it once, however many processes found out; those that did not hear of it are told."""
    if speaks():
        _print(sentence, style)
    farewell(code, sentence)
    return code


def farewell(code: int, sentence: str = "") -> None:
    """Tell the other processes that this one ends by itself."""
    if _Held.line is not None:
        _Held.line.leave(code, sentence.removeprefix("ducats: "))


def _print(sentence: str, style: str) -> None:
    Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def speaks() -> bool:
    """Whether this process says what is to be said: the first of all; before they have met, of its host.

    One that this command itself started fails alone before that: the first process would have failed earlier.
    """
    if _Held.line is not None:
        return _Held.line.rank == 0
    return hosts.launcher() == "own" or hosts.place()[1] == 0


def leave_together() -> bool:
    """End the group of processes in order, if there is one; one that just exits may be aborted."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            if _Held.line is None or _Held.line.missing() is None:  # else nobody is there to part from
                distributed.destroy_process_group()
            return True
    return False


def leave_at_once(code: int) -> None:
    """Exit without taking Python apart: threads of a group that is gone may abort it, with another code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def let_the_first_process_leave(seconds: float = 20.0) -> None:
    """Wait for the process that started this one: what ends a command ends with it, and not before.

    All processes hear of a failure and end alike, but Fabric's observer cannot know that.
    """
    until = time.monotonic() + seconds
    while os.getppid() == hosts.parent() and time.monotonic() < until:
        time.sleep(0.05)
