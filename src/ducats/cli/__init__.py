"""The `ducats` command. Each subcommand parses its options, calls one function and prints the result.

Exit codes: 0 success; 1 internal error, errors found by the doctor, or a failed run of a sweep; 2 bad input;
3 waiting for annotators' answers; 75 another process of the run was lost, run the same command again to
resume. Torch is imported inside the subcommands, which keeps `--help` fast.
There is one module per group of commands; importing it registers them.
"""

import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from ducats.cli import (
    answering,
    asking,
    deploying,
    drawing,
    labelling,
    scoring,
    studio,
    sweeping,
    trained,
    training,
    tuning,
    watching,
)
from ducats.cli.base import app, console
from ducats.cli.leaving import (
    farewell,
    leave_at_once,
    leave_together,
    let_the_first_process_leave,
    other_end,
    say,
    stop_writing,
)
from ducats.errors import AwaitingLabels, UserError

__all__ = [
    "answering",
    "app",
    "asking",
    "console",
    "deploying",
    "drawing",
    "labelling",
    "main",
    "scoring",
    "studio",
    "sweeping",
    "trained",
    "training",
    "tuning",
    "watching",
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input gives a message instead of a traceback."""
    try:
        # Commands return their exit code. By default cyclopts would exit with it before the clean-up below.
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:
        code = 2  # already reported
    except UserError as error:
        code = say(f"ducats: {error}", "red", 2)
    except AwaitingLabels as pause:
        code = say(f"paused: {pause}", "yellow", 3)
    except KeyboardInterrupt:
        code = say("stopped; run the same command again to resume", "yellow", 130)
    except BrokenPipeError:
        code = stop_writing()
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = say(f"ducats: system error{where}: {error.strerror or error}", "red", 2)
    except Exception as error:
        code = other_end()  # a failure caused by the exit of another process is not an internal error
        if code is None:
            farewell(1, f"{type(error).__name__}: {error}")
            raise
    farewell(int(code or 0))
    several = leave_together()
    if code:
        let_the_first_process_leave()
    if several:
        leave_at_once(int(code or 0))
    sys.exit(code)
