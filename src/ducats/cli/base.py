"""The cyclopts app and the console shared by all commands. Imports no torch, to keep `--help` fast."""

import json
import sys
from importlib.metadata import version
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, select the most informative target "
    "images or pixels for labelling, and report the model's uncertainty.",
    version=lambda: version("ducats"),
    suppress_keyboard_interrupt=False,
    help_epilogue="Start with `ducats demo`, then `ducats run --source DIR --target DIR`. Segmentation: "
    "`ducats demo --task segmentation`, then `ducats run -c segmentation --source DIR --target DIR --classes "
    "FILE`.",
)
console = Console()
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


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
