"""Trials of a search, each a run in its own folder and process."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats import config as configs
from ducats.config import Config
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.tune.search_space import GridPoint, to_settings
from ducats.utils.errors import UserError
from ducats.utils.files import write_text_atomically


@dataclass(frozen=True)
class Trial:
    """One combination of the searched settings."""

    point: GridPoint
    config: Config
    run_folder: RunFolder

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.run_folder.path.name


TrialLauncher = Callable[[Trial], None]  # runs a trial to its end, or raises UserError


def make_trials(
    base: Path, points: Sequence[GridPoint], out: Path, shared_settings: Sequence[str] = ()
) -> list[Trial]:
    """Create one trial per point: the base config with the point's settings.

    Args:
        base: config file.
        out: parent of the run folders, which are named by the config's digest.
        shared_settings: settings shared by all trials.
    """
    trials: dict[str, Trial] = {}
    for point in points:
        config = configs.load_config([base], [*to_settings(point), *shared_settings])
        name = config.digest()
        if name in trials:
            raise UserError(
                f"{format_grid_point(point)} and {format_grid_point(trials[name].point)} are the same run; "
                "list each value only once"
            )
        trials[name] = Trial(point, config, RunFolder(out / name))
    return list(trials.values())


def run_in_subprocess(trial: Trial) -> None:
    """Run a trial with `ducats run` in a child process, which frees all memory even after a failure."""
    file = trial.run_folder.path.with_suffix(".yaml")
    write_text_atomically(file, configs.to_yaml(trial.config))
    child = [sys.executable, "-m", "ducats.cli.child", str(os.getpid())]  # ends when this process ends
    command = [*child, "run", "-c", str(file), "--out", str(trial.run_folder.path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode == 130:
        raise KeyboardInterrupt
    if completed.returncode:
        lines = [line.strip() for line in (completed.stdout + completed.stderr).splitlines() if line.strip()]
        last = next((line for line in lines if line.startswith("ducats:")), lines[-1] if lines else "")
        raise UserError(
            last.removeprefix("ducats:").strip() or f"failed with exit code {completed.returncode}"
        )


def format_grid_point(point: Mapping[str, object]) -> str:
    """Format a point for display.

    >>> format_grid_point({"objective.params.beta": 0.1, "train.lr": 0.01})
    'beta=0.1, lr=0.01'
    """
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items())
