"""The cyclopts app and the console shared by all commands. Imports no torch, to keep `--help` fast."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from ducats.utils.csv_files import write_csv
from ducats.utils.errors import UserError
from ducats.utils.terminal import TerminalConsole, printable

console = TerminalConsole()
app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, select the most informative target "
    "images or pixels for labelling, and report the model's uncertainty.",
    version=lambda: version("ducats"),
    suppress_keyboard_interrupt=False,
    console=console,
    error_console=TerminalConsole(stderr=True),
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
