"""Jobs of a sweep, and the protocol of the backends that execute them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ducats.config import to_yaml
from ducats.files import write_text_atomically
from ducats.sweep.cells import Cell


@dataclass(frozen=True)
class Running:
    """A run being executed, with its files."""

    cell: Cell
    config: Path
    folder: Path
    log: Path
    before: int  # size of the log after earlier attempts, in bytes
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.cell.name

    @property
    def command(self) -> list[str]:
        """Arguments of ``ducats``."""
        return arguments(self.config, self.folder)

    @property
    def lock(self) -> Path:
        """File that the run keeps locked while it is active."""
        return self.folder / ".lock"

    def last_line(self, most: int = 4096) -> str:
        """Return the last non-empty line of the log."""
        if not self.log.exists():  # the run has not started yet
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.before, self.log.stat().st_size - most))
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def arguments(config: Path, folder: Path) -> list[str]:
    """Return the arguments of ``ducats`` for a run."""
    return ["run", "-c", str(config), "--out", str(folder)]


def lay_out(cell: Cell, out: Path) -> Running:
    """Write the config of a run for the backend, which may be on another machine."""
    config, log = (out / "configs" / f"{cell.name}.yaml").absolute(), out / "logs" / f"{cell.name}.txt"
    write_text_atomically(config, to_yaml(cell.config))
    log.parent.mkdir(exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    return Running(cell, config, cell.folder(out).absolute(), log.absolute(), before)


class End(NamedTuple):
    """Exit code of a run, or minus the signal that ended it; and a reason if the log has none."""

    name: str
    code: int
    why: str = ""


class Engine(Protocol):
    """Executes runs."""

    @property
    def pace(self) -> float:
        """Seconds between two polls."""

    def room(self) -> int:
        """Return the number of runs that can be started now."""

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Start runs, at most ``room()``; return the location of each."""

    def ended(self) -> list[End]:
        """Return the runs that ended since the last call."""

    def stop(self) -> str:
        """Stop all runs, or return a message if they continue without the sweep."""
