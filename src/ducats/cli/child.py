"""A command on behalf of another process: ``python -m ducats.cli.child PARENT run ...``.

Whoever started it may be killed in a way that nobody can answer. Then it ends, too: a run without its sweep
would hold its folder against the next one.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

from ducats.cli import main

BETWEEN = 0.5  # seconds between two looks at who our parent is


def end_with(parent: int) -> None:
    """End this process, and all that it started, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(BETWEEN)
    if os.getpgid(0) == os.getpid():  # the group is ours alone
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def parent_of(said: int, environment: Mapping[str, str]) -> int:
    """Whom this process ends with: PARENT; of a run in several processes, the others end with the first.

    Args:
        said: PARENT. The first process starts the others by its own command line, so that they are told the
            same, but they are its children.
        environment: ours.
    """
    return said if environment.get("LOCAL_RANK", "0") == "0" else os.getppid()


if __name__ == "__main__":
    parent = parent_of(int(sys.argv[1]), os.environ)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    main(sys.argv[2:])
