"""A process that scores parts of a pool for another: ``python -m ducats.scoring.worker``.

It is told what to do by two lines of JSON on its standard input, a job and numbers of parts, and says how far
it is by lines of JSON on its standard output. Once its input closes, whoever started it is gone: it ends.
"""

import json
import os
import sys
import threading
from contextlib import redirect_stdout

from ducats.errors import UserError
from ducats.scoring.job import Job, Worker


def end_with_input() -> None:
    """End this process when its input closes."""
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Do what we are told."""
    job, ranks = Job.from_json(sys.stdin.readline()), json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_input, daemon=True).start()
    output = sys.stdout

    def say(**words: int | str) -> None:
        output.write(json.dumps(words) + "\n")
        output.flush()

    with redirect_stdout(sys.stderr):  # what a model prints is for the log
        try:
            Worker(job).do(ranks, lambda seen: say(seen=seen))
        except UserError as error:
            say(error=str(error))
            return 2
    return 0


if __name__ == "__main__":
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nor may a library's own words come between our lines
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread waits for input, and would be waited for
