"""What a logger is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """Takes a run's numbers. What it raises is said once, and never stops the run."""

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Begin, or go on.

        Args:
            name: the run's, no other's and the same each time that it goes on.
            settings: what makes the run, nested as in its config.yaml.
        """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take numbers by name; they are not told again, so they should be safe when this returns.

        Args:
            values: ``loss/...`` of an epoch, or ``stage/...`` of a stage (``check/...`` in between).
            step: optimiser steps that were done; it never falls, but may stay.
        """

    def finish(self) -> None:
        """The run ended or pauses."""


Maker = Callable[[Path], Logger]  # takes the run's folder
