"""A command on behalf of another process: ``python -m ducats.cli.child PARENT run ...``.

Whoever started it may be killed in a way that nobody can answer. Then it ends, too: a run without its sweep
would hold its folder against the next one.
"""

import os
import signal
import sys
import threading
import time

from ducats.cli import main

BETWEEN = 0.5  # seconds between two looks at who our parent is


def end_with(parent: int) -> None:
    """End this process, and all that it started, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(BETWEEN)
    if os.getpgid(0) == os.getpid():  # the group is ours alone
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
    main(sys.argv[2:])
