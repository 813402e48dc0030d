"""How the command ends: what is said last, and in which order several processes go."""

import os
import sys
import time

from rich.console import Console


def stop_writing() -> int:
    """Whoever read what is printed has enough (`ducats labels RUN | head`): no error."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the end, where Python flushes it
    return 0


def say(sentence: str, style: str, code: int) -> int:
    """Say it once, however many processes found out."""
    if rank() == 0:
        Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)
    return code


def leave_together() -> bool:
    """End the group of processes in order, if there is one; one that just exits may be aborted."""
    if "torch.distributed" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
            return True
    return False


def leave_at_once(code: int) -> None:
    """Exit without taking Python apart: threads of a group that is gone may abort it, with another code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def rank() -> int:
    """Which of the processes of a run this is; 0 is the one that speaks."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def let_the_first_process_leave(seconds: float = 20.0) -> None:
    """Wait for whoever started this process: it kills itself when another one fails before it has spoken.

    All processes hear of a failure and end alike, but Fabric's observer cannot know that.
    """
    parent, until = os.getppid(), time.monotonic() + seconds
    while rank() > 0 and os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)
