"""Trackers that are spoken to by ``init``, ``log`` and ``finish``: trackio, and W&B, its twin."""

import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

PROJECT = "ducats"  # where the environment names no other


class Tracker:
    """A run of such a tracker; a run that goes on goes on there, too.

    Args:
        module: its package. ``TRACKIO_PROJECT``, ``WANDB_PROJECT`` name the project; all else is set up as
            the package itself wants it.
        by_id: whether a run is found again by an id, and not by its name.
    """

    def __init__(self, module: str, *, by_id: bool) -> None:
        self._module, self._by_id = module, by_id

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Begin a run, or go on with it."""
        self._tracker: Any = import_module(self._module)
        project = os.environ.get(f"{self._module.upper()}_PROJECT", PROJECT)
        more = {"id": re.sub(r"[^\w.-]+", "-", name)} if self._by_id else {}
        self._tracker.init(project=project, name=name, config=dict(settings), resume="allow", **more)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand numbers over; when they are sent is the tracker's matter."""
        self._tracker.log(dict(values), step=step)

    def finish(self) -> None:
        """Have the rest sent."""
        self._tracker.finish()


def trackio(folder: Path) -> Tracker:  # noqa: ARG001 - it keeps its files itself
    """Trackio, on this machine unless its own settings say otherwise."""
    return Tracker("trackio", by_id=False)


def wandb(folder: Path) -> Tracker:  # noqa: ARG001 - as above
    """W&B, as `wandb login` or WANDB_MODE set it up."""
    return Tracker("wandb", by_id=True)
