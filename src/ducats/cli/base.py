"""The app that all commands hang on, and where they print. No torch, so that `--help` answers at once."""

import json
import sys
from importlib.metadata import version
from typing import Any

from cyclopts import App
from rich.console import Console

app = App(
    name="ducats",
    help="Active domain adaptation: train on labelled source images, ask for the few target labels that are "
    "worth it, of images or of their pixels, learn, and tell how sure the model is.",
    version=lambda: version("ducats"),
    suppress_keyboard_interrupt=False,
    help_epilogue="Start with `ducats demo`, then `ducats run --source DIR --target DIR`. Segmentation: "
    "`ducats demo --task segmentation`, then `ducats run -c segmentation --source DIR --target DIR --classes "
    "FILE`.",
)
console = Console()


def print_json(value: Any) -> None:
    """Print JSON for programs and people."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
