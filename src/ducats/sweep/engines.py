"""What a sweep needs to know of a run under way, and of whoever computes it."""

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
    """A run that is under way."""

    cell: Cell
    config: Path
    folder: Path
    log: Path
    before: int  # bytes that an earlier attempt left in the log
    began: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Of the run."""
        return self.cell.name

    @property
    def command(self) -> list[str]:
        """What follows ``ducats``."""
        return arguments(self.config, self.folder)

    @property
    def lock(self) -> Path:
        """The file that the run holds locked while it works."""
        return self.folder / ".lock"

    def last_line(self, most: int = 4096) -> str:
        """The last line of the log that says something."""
        if not self.log.exists():  # the machine that computes it has not begun
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.before, self.log.stat().st_size - most))
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def arguments(config: Path, folder: Path) -> list[str]:
    """What follows ``ducats`` to do a run."""
    return ["run", "-c", str(config), "--out", str(folder)]


def lay_out(cell: Cell, out: Path) -> Running:
    """Write a run's config down, for whoever computes it, maybe elsewhere."""
    config, log = (out / "configs" / f"{cell.name}.yaml").absolute(), out / "logs" / f"{cell.name}.txt"
    write_text_atomically(config, to_yaml(cell.config))
    log.parent.mkdir(exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    return Running(cell, config, cell.folder(out).absolute(), log.absolute(), before)


class End(NamedTuple):
    """A run ended: its exit code, or minus the signal that ended it; and why, if the run could not say it."""

    name: str
    code: int
    why: str = ""


class Engine(Protocol):
    """Who computes runs."""

    @property
    def pace(self) -> float:
        """Seconds between two looks at them."""

    def room(self) -> int:
        """How many more runs can begin."""

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Begin runs, as many as there is room for at most; return where each is computed."""

    def ended(self) -> list[End]:
        """Runs that ended since this was last asked."""

    def stop(self) -> str:
        """The sweep ends before its runs: end them, or say in a sentence what becomes of them."""
