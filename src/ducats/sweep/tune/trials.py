"""Trials of a search, each a run in its own folder and process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ducats import config as configs
from ducats.config import Config
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.runner import run_sweep
from ducats.sweep.runs import SweepRun
from ducats.sweep.slots import Slot
from ducats.sweep.tune.search_space import GridPoint, to_settings
from ducats.utils.errors import UserError


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
    """Run a trial as a sweep of one run: its process frees all memory, even after a failure."""
    config, name = trial.config, trial.name
    sweep_run = SweepRun(method=config.method, task="", config=config, name=name)
    slot = Slot(config.engine.device, config.engine.device)
    outcome = run_sweep([sweep_run], trial.run_folder.path.parent, [slot], Console(quiet=True))
    if outcome.exit_code:
        error = outcome.failed.get(name, "it waits for labels")
        raise UserError(error.removeprefix("ducats: "))


def format_grid_point(point: Mapping[str, object]) -> str:
    """Format a point for display.

    >>> format_grid_point({"objective.params.beta": 0.1, "train.lr": 0.01})
    'beta=0.1, lr=0.01'
    """
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items())
