"""Run a command as a child process: ``python -m ducats.cli.child PARENT run ...``.

The child exits when its parent (process id PARENT) is gone, even if the parent was killed. An orphaned run
would keep its folder locked.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

from ducats.cli import main

_PARENT_POLL_SECONDS = 0.5  # between checks of the parent process


def exit_with_parent(parent: int) -> None:
    """Kill this process and its children once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    if os.getpgid(0) == os.getpid():  # this process leads its process group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def watched_parent_pid(launcher_pid: int, environment: Mapping[str, str]) -> int:
    """Return the process id to watch: PARENT on local rank 0, otherwise the actual parent.

    Rank 0 starts the other ranks with its own command line, so they get the same PARENT but are its children.

    Args:
        launcher_pid: PARENT from the command line.
        environment: environment variables of this process.
    """
    return launcher_pid if environment.get("LOCAL_RANK", "0") == "0" else os.getppid()


if __name__ == "__main__":
    parent = watched_parent_pid(int(sys.argv[1]), os.environ)
    threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()
    main(sys.argv[2:])
