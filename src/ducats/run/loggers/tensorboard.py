"""TensorBoard event files in the run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ducats.runfolder.run_folder import RunFolder

_STAGE_PREFIX = "stage/"
_NOT_OVER_LABELS = ("stage", "epoch", "labels")  # not plotted over labels


class TensorBoard:
    """Write scalars over steps, and those of stages also over labels, as TensorBoard has no choice of axis.

    Args:
        folder: the run folder; event files go to its subfolder ``tensorboard``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder).tensorboard_path

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Open a new event file next to earlier ones."""
        from torch.utils.tensorboard import SummaryWriter

        new = not self._folder.exists()
        self._writer = SummaryWriter(str(self._folder))
        if new:
            text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
            self._writer.add_text(
                "settings", "".join(f"    {line}\n" for line in [f"# {name}", *text.splitlines()])
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars; they are on disk when this returns."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        labels = values.get(f"{_STAGE_PREFIX}labels")
        for name, value in values.items():
            metric = name.removeprefix(_STAGE_PREFIX)
            if labels is not None and metric != name and metric not in _NOT_OVER_LABELS:
                self._writer.add_scalar(f"over_labels/{metric}", value, int(labels))
        self._writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()
