"""The command `ducats`. Each subcommand parses, calls one function, prints what came out.

Exit codes: 0 done, 1 a defect of ours, findings of the doctor or a sweep's run that failed, 2 bad input, 3
waiting for people's answers, 75 another process of the run was lost, and the same command goes on. Torch is
imported inside the subcommands, so that `--help` answers at once.
There is a file for each group of commands: importing it is what adds them.
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
    """Run the command line; bad input is one sentence, not a traceback."""
    try:
        # What a command returns is its exit code; by itself cyclopts would leave with it, and not in order.
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:
        code = 2  # said already
    except UserError as error:
        code = say(f"ducats: {error}", "red", 2)
    except AwaitingLabels as pause:
        code = say(f"paused: {pause}", "yellow", 3)
    except KeyboardInterrupt:
        code = say("stopped; the same command goes on", "yellow", 130)
    except BrokenPipeError:
        code = stop_writing()
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = say(f"ducats: the system refused{where}: {error.strerror or error}", "red", 2)
    except Exception as error:
        code = other_end()  # what broke off with another process is no defect
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
