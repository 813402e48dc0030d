"""Worker process that scores chunks of a pool: ``python -m ducats.deploy.scoring.worker``.

It reads two lines of JSON from standard input, the job and the chunk numbers, and writes its progress as
lines of JSON to standard output. It exits when standard input closes, that is, when the parent has ended.
"""

import json
import os
import sys
import threading
from contextlib import redirect_stdout

from ducats.deploy.scoring.job import ChunkScorer, Job
from ducats.utils.errors import UserError


def exit_on_stdin_close() -> None:
    """Exit this process when standard input closes."""
    sys.stdin.read()
    os._exit(1)


def run_worker() -> int:
    """Score the chunks given on standard input; return the exit code."""
    job, chunks = Job.from_json(sys.stdin.readline()), json.loads(sys.stdin.readline())
    threading.Thread(target=exit_on_stdin_close, daemon=True).start()
    output = sys.stdout

    def send(**message: int | str) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    with redirect_stdout(sys.stderr):  # output printed by the model belongs in the log
        try:
            ChunkScorer(job).score_and_save(chunks, lambda n_samples: send(n_samples=n_samples))
        except UserError as error:
            send(error=str(error))
            return 2
    return 0


if __name__ == "__main__":
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # native libraries must not write between the JSON lines either
    code = run_worker()
    sys.stdout.flush()
    os._exit(code)  # a normal exit would wait for the thread that reads standard input
