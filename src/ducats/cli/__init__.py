"""The `ducats` command. Each subcommand parses its options, calls one function and prints the result.

Exit codes: 0 success; 1 internal error, errors found by the doctor, or a failed run of a sweep; 2 bad input;
3 waiting for annotators' answers; 75 another process of the run was lost, run the same command again to
resume. Torch is imported inside the subcommands, which keeps `--help` fast.
There is one module per group of commands.
"""

import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import CycloptsError

from ducats.cli import (  # noqa: F401 - importing them registers their commands
    answers,
    cache,
    classes,
    deploy,
    figure,
    inspect,
    label,
    label_studio,
    run,
    runs,
    score,
    sweep,
    tune,
    watch,
)
from ducats.cli.base import app as app
from ducats.cli.base import format_warning
from ducats.cli.shutdown import (
    discard_stdout,
    exit_immediately,
    leave_process_group,
    notify_exit,
    peer_exit_code,
    remember_arguments,
    report_exit,
    wait_for_rank_zero,
)
from ducats.utils.errors import AwaitingLabels, UserError

for command in app:
    if not command.startswith("-"):
        app[command].help_format = "markdown"  # paragraphs of a docstring are filled


app.register_install_completion_command(
    help="Complete commands and options with Tab: install this for bash, zsh, fish or PowerShell (--shell)."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input gives a message instead of a traceback."""
    remember_arguments(arguments)
    warnings.formatwarning = format_warning
    # Waiting threads spin by default; on a shared machine they take the cores from those that compute. Read
    # when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        # Commands return their exit code. By default cyclopts would exit with it before the clean-up below.
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:
        code = 2  # already reported
    except UserError as error:
        code = report_exit(f"ducats: {error}", "red", 2)
    except AwaitingLabels as pause:
        code = report_exit(f"paused: {pause}", "yellow", 3)
    except KeyboardInterrupt:
        code = report_exit("stopped; run the same command again to resume", "yellow", 130)
    except BrokenPipeError:
        code = discard_stdout()
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        code = report_exit(f"ducats: system error{where}: {error.strerror or error}", "red", 2)
    except Exception as error:
        code = peer_exit_code()  # a failure caused by the exit of another process is not an internal error
        if code is None:
            notify_exit(1, f"{type(error).__name__}: {error}")
            raise
    notify_exit(int(code or 0))
    is_distributed = leave_process_group()
    if code:
        wait_for_rank_zero()
    if is_distributed:
        exit_immediately(int(code or 0))
    sys.exit(code)
