"""Trackers with the functions ``init``, ``log`` and ``finish``: trackio and W&B."""

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

DEFAULT_PROJECT = "ducats"  # default of the environment variables


class Tracker:
    """Log to a tracker; a resumed run resumes there too.

    Args:
        module: the tracker's package. ``TRACKIO_PROJECT`` or ``WANDB_PROJECT`` sets the project; everything
            else is configured as in the package's documentation.
        by_id: whether the tracker identifies a run by an id rather than by its name.
    """

    def __init__(self, module: str, *, by_id: bool) -> None:
        self._module, self._by_id = module, by_id

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start or resume a run."""
        self._tracker: Any = import_module(self._module)
        project = os.environ.get(f"{self._module.upper()}_PROJECT", DEFAULT_PROJECT)
        extras = {"id": re.sub(r"[^\w.-]+", "-", name)} if self._by_id else {}
        self._tracker.init(project=project, name=name, config=dict(settings), resume="allow", **extras)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values; the tracker decides when to send them."""
        self._tracker.log(dict(values), step=step)

    def finish(self) -> None:
        """Send the remaining values."""
        self._tracker.finish()
