"""One trial: a config, its folder, and a run of it in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ducats import config as configs
from ducats.config import Config
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.rundir import RunDir
from ducats.tune.space import Point, settings_of


@dataclass(frozen=True)
class Trial:
    """One combination of the searched settings."""

    point: Point
    config: Config
    home: RunDir

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.home.folder.name


Launch = Callable[[Trial], None]  # brings a trial's run to its end, or raises UserError


def make_trials(base: Path, points: Sequence[Point], out: Path, more: Sequence[str] = ()) -> list[Trial]:
    """A trial for each point; each is the base config with a few settings changed.

    Args:
        base: a config's file.
        points: what to change.
        out: a folder for each run comes into it, named by the run's digest.
        more: settings that all trials share.
    """
    trials: dict[str, Trial] = {}
    for point in points:
        config = configs.load([base], [*settings_of(point), *more])
        name = config.digest()
        if name in trials:
            raise UserError(
                f"{words(point)} and {words(trials[name].point)} are the same run: name each value once"
            )
        trials[name] = Trial(point, config, RunDir(out / name))
    return list(trials.values())


def as_process(trial: Trial) -> None:
    """Run a trial as `ducats run` does: nothing of it is left in memory, whatever becomes of it."""
    file = trial.home.folder.with_suffix(".yaml")
    write_text_atomically(file, configs.to_yaml(trial.config))
    child = [sys.executable, "-m", "ducats.cli.child", str(os.getpid())]  # it ends when we do
    command = [*child, "run", "-c", str(file), "--out", str(trial.home.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        last = next((line for line in said if line.startswith("ducats:")), said[-1] if said else "")
        raise UserError(last.removeprefix("ducats:").strip() or f"it ended with {done.returncode}")


def words(point: Mapping[str, object]) -> str:
    """A point for people.

    >>> words({"objective.knobs.beta": 0.1, "train.lr": 0.01})
    'beta=0.1, lr=0.01'
    """
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items())
