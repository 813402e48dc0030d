"""Run part of a test in a forked process, which may be killed."""

import os
import sys
from collections.abc import Callable

import torch


def run_in_child(act: Callable[[], object]) -> int:
    """Call ``act`` in a forked process; return its exit status, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            # A fork loses torch's thread pool, and recreating it from two threads at once fails.
            torch.set_num_threads(1)
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
