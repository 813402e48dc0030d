"""Jobs of a sweep, and the protocol of the backends that execute them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ducats.config import to_yaml
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.runs import SweepRun
from ducats.utils.files import make_folder, write_text_atomically


@dataclass(frozen=True)
class SweepJob:
    """A run being executed, with its files."""

    sweep_run: SweepRun
    config_path: Path
    folder: Path
    log_path: Path
    log_offset: int  # size of the log after earlier attempts, in bytes
    shared_answers: Sequence[Path] = ()  # folders with answers of people that the run may use
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.sweep_run.name

    @property
    def arguments(self) -> list[str]:
        """Arguments of ``ducats``."""
        shared = [word for folder in self.shared_answers for word in ("--answers", str(folder.absolute()))]
        return ["run", "-c", str(self.config_path), "--out", str(self.folder), *shared]

    @property
    def lock_path(self) -> Path:
        """File that the run keeps locked while it is active."""
        return RunFolder(self.folder).lock_path

    def last_line(self, max_bytes: int = 4096) -> str:
        """Return the last non-empty line of the log."""
        if not self.log_path.exists():  # the run has not started yet
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(self.log_offset, self.log_path.stat().st_size - max_bytes))
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def write_job(sweep_run: SweepRun, out: Path, shared_answers: Sequence[Path] = ()) -> SweepJob:
    """Write the config of a run for the backend, which may be on another machine."""
    config_path = (out / "configs" / f"{sweep_run.name}.yaml").absolute()
    log_path = out / "logs" / f"{sweep_run.name}.txt"
    write_text_atomically(config_path, to_yaml(sweep_run.config))
    make_folder(log_path.parent)
    log_offset = log_path.stat().st_size if log_path.exists() else 0
    folder = sweep_run.folder(out).absolute()
    return SweepJob(sweep_run, config_path, folder, log_path.absolute(), log_offset, shared_answers)


class JobEnd(NamedTuple):
    """Exit code of a run, or minus the signal that ended it; and a reason if the log has none."""

    name: str
    exit_code: int
    reason: str = ""


class SweepBackend(Protocol):
    """Executes runs."""

    @property
    def poll_seconds(self) -> float:
        """Seconds between two polls."""

    def free_slots(self) -> int:
        """Return the number of runs that can be started now."""

    def submit(self, jobs: Sequence[SweepJob]) -> list[str]:
        """Start runs, at most ``free_slots()``; return the location of each."""

    def pop_finished(self) -> list[JobEnd]:
        """Return the runs that ended since the last call."""

    def stop(self) -> str:
        """Stop all runs, or return a message if they continue without the sweep."""
