"""The logger protocol."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """Receives a run's metrics. Its exceptions are reported once and never stop the run."""

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start or resume logging.

        Args:
            name: unique name of the run, the same each time it is resumed.
            settings: the run's config, nested as in config.yaml.
        """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values by name. They are not sent again, so they should be stored when this returns.

        Args:
            values: ``loss/...`` of an epoch, or ``stage/...`` of a stage (``interim/...`` in between).
            step: optimiser steps so far; never decreases, but may repeat.
        """

    def finish(self) -> None:
        """Called when the run ends or pauses."""


LoggerFactory = Callable[[Path], Logger]  # takes the run folder
