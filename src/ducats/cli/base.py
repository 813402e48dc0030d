"""The cyclopts app and the console shared by all commands. Imports no torch, to keep `--help` fast."""

import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, CycloptsPanel, MissingArgumentError, Parameter, UnusedCliTokensError
from rich.console import Console
from rich.panel import Panel

from ducats.utils.csv_files import write_csv
from ducats.utils.errors import UserError
from ducats.utils.terminal import TerminalConsole, printable


def describe_error(error: CycloptsError) -> Panel:
    """Return an error of the command line in a frame; too many or too few arguments in a plain sentence."""
    command = " ".join(["ducats", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError):
        unused = ", ".join(error.unused_tokens or ())
        return CycloptsPanel(f"Too many arguments: {unused}. See {command} --help.")
    argument = error.argument
    if isinstance(error, MissingArgumentError) and argument is not None and not error.unused_tokens:
        is_absent = error.keyword is None and not argument.tokens
        is_option = argument.field_info.is_keyword_only
        name = argument.name if is_option else argument.name.removeprefix("--").upper()
        if is_absent:
            return CycloptsPanel(f"{command} needs {name}. See {command} --help.")
    return CycloptsPanel(error)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line for the user; those of other packages keep the place in their code."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"ducats: warning: {message}\n"
    return _default_format_warning(message, category, filename, lineno, line)


_default_format_warning = warnings.formatwarning


def installed_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import version

    return version("ducats")


console = TerminalConsole()
app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, select the most informative target "
    "images or pixels for labelling, and report the model's uncertainty.",
    version=installed_version,
    help_format="plaintext",  # of the list of commands; Markdown would take a third of its time
    suppress_keyboard_interrupt=False,
    console=console,
    error_console=TerminalConsole(stderr=True),
    error_formatter=describe_error,
    help_epilogue="Start with `ducats demo`, then `ducats run --source DIR --target DIR`. Segmentation: "
    "`ducats demo --task segmentation`, then `ducats run -c segmentation --source DIR --target DIR --classes "
    "FILE`.",
)
Strict = Annotated[
    bool, Parameter(negative=(), help="Refuse unreadable images; default: skip, count and list them.")
]
TrustCode = Annotated[
    bool,
    Parameter(
        negative=(),
        help="Run code outside of ducats that the config of the run names. Only for run folders whose "
        "author you trust.",
    ),
]


def print_line(message: str, style: str | None = None, *, output: Console = console) -> None:
    """Print a line as it is: no markup, no highlighting, no wrapping."""
    output.print(message, style=style, highlight=False, markup=False, soft_wrap=True)


def print_warning(message: str, *, output: Console = console) -> None:
    """Print a warning."""
    print_line(f"warning: {message}", "yellow", output=output)


@contextmanager
def progress_bars() -> Iterator[None]:
    """Show what takes time, such as reading images, as bars on a terminal; they vanish at the end."""
    from ducats.utils.progress_display import ProgressDisplay

    display = ProgressDisplay(transient=True)
    if not display.console.is_terminal:
        yield
        return
    with display:
        yield


def print_csv(rows: Iterable[Sequence[Any]]) -> None:
    """Print rows as CSV."""
    if sys.stdout.isatty():
        rows = ([printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    write_csv(sys.stdout, rows)


def check_poll(seconds: float) -> None:
    """Raise if `--poll` is not a positive number of seconds."""
    if not 0 < seconds < math.inf:
        raise UserError(f"--poll must be a positive number of seconds, not {seconds:g}")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def login_name() -> str:
    """Return the name of the user; empty in a container without an entry for the user."""
    try:
        return getuser()
    except (OSError, KeyError):
        return ""
