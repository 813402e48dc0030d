"""Run a command as a child process: ``python -m ducats.cli.child PARENT run ...``.

The child exits when its parent (process id PARENT) is gone, even if the parent was killed. An orphaned run
would keep its folder locked.
"""

import sys

from ducats.cli import main
from ducats.utils.child_process import exit_with_parent

if __name__ == "__main__":
    exit_with_parent(int(sys.argv[1]))
    main(sys.argv[2:])
