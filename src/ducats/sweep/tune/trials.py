"""Search space, and the trials of a search: each a combination of its values and a run in its own process."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from ducats.acquisition.queries import resolve_query
from ducats.config import Config, load_config, query_epochs
from ducats.objectives import resolve_objective
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.local_backend import LocalSweepBackend, Slot
from ducats.sweep.runner import run_sweep
from ducats.sweep.runs import SweepRun
from ducats.utils.errors import UserError
from ducats.utils.randomness import make_generator
from ducats.utils.yaml_text import load_yaml

SearchGrid = Mapping[str, Sequence[Any]]
GridPoint = dict[str, Any]  # one value of each searched setting

NOT_SEARCHABLE = {  # reason why a setting cannot be searched, by prefix
    "seed": "the best seed would win by chance",
    "data": "it would change the problem",
    "task": "it would change the problem",
    "oracle": "it would change the labels",
    "evaluation": "it would change the images of the risk estimate",
    "engine": "it does not affect the result",
    "method": "it is only a name",
    "acquisition.budget": "more labels would always win",
}


def default_grid(config: Config) -> SearchGrid:
    """Return the search grids of the objective and, if the run has query rounds, of the query."""
    grids = {"objective": resolve_objective(config.objective.name).search_grid}
    if query_epochs(config):
        grids["query"] = resolve_query(config.query.name).search_grid
    grid = {f"{kind}.params.{name}": values for kind in grids for name, values in grids[kind].items()}
    if not grid:
        raise UserError(
            f"there is no default search space for the objective {config.objective.name!r} with the query "
            f"{config.query.name!r}; define one, e.g. --grid train.lr=0.001,0.01"
        )
    return grid


def parse_grid(options: Sequence[str]) -> SearchGrid:
    """Parse settings of the form ``key=value,value``, with values in YAML.

    >>> parse_grid(["query.params.kappa=5,10", "train.lr=1e-3"])
    {'query.params.kappa': (5, 10), 'train.lr': (0.001,)}
    """
    grid: dict[str, Sequence[Any]] = {}
    for text in options:
        key, equals, values_text = (part.strip() for part in text.partition("="))
        if not key or not equals or not values_text:
            raise UserError(f"--grid {text!r} must have the form key=value,value, e.g. train.lr=0.001,0.01")
        for prefix, reason in NOT_SEARCHABLE.items():
            if key == prefix or key.startswith(f"{prefix}."):
                raise UserError(
                    f"--grid {key} cannot be searched, because {reason}; set one value with --set"
                )
        if key in grid:
            raise UserError(f"--grid {key} is given twice; list all values in one option")
        try:
            values = load_yaml(f"[{values_text}]")
        except yaml.YAMLError as error:
            raise UserError(
                f"--grid {text} has invalid YAML values: {' '.join(str(error).split())}"
            ) from None
        grid[key] = tuple(_parse_number(value) for value in values)
    return grid


def _parse_number(value: Any) -> Any:
    """Convert strings like ``1e-3``, which YAML does not parse as numbers."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def sample_grid_points(grid: SearchGrid, max_trials: int, seed: int) -> list[GridPoint]:
    """Sample at most ``max_trials`` combinations; a larger number extends the list of a smaller one."""
    if max_trials < 1:
        raise UserError(f"--trials must be at least 1, not {max_trials}")
    all_values = list(product(*grid.values()))
    order = torch.randperm(len(all_values), generator=make_generator(seed, "tune"))[:max_trials].tolist()
    return [dict(zip(grid, all_values[index], strict=True)) for index in order]


def count_combinations(grid: SearchGrid) -> int:
    """Return the number of combinations."""
    return math.prod(len(values) for values in grid.values())


def to_settings(point: Mapping[str, Any]) -> list[str]:
    """Convert a point to ``key=value`` settings.

    >>> to_settings({"train.lr": 1e-05, "query.params.kappa": 5})
    ['train.lr=1.0e-05', 'query.params.kappa=5']
    """
    return [f"{key}={_to_yaml(value)}" for key, value in point.items()]


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


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
        out: parent of the run folders, which are named by the config's digest.
    """
    trials: dict[str, Trial] = {}
    for point in points:
        config = load_config([base], [*to_settings(point), *shared_settings])
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
    backend = LocalSweepBackend([Slot(config.engine.device, config.engine.device)])
    outcome = run_sweep([sweep_run], trial.run_folder.path.parent, backend, Console(quiet=True))
    if outcome.exit_code:
        error = outcome.failed.get(name, "it waits for labels")
        raise UserError(error.removeprefix("ducats: "))


def format_grid_point(point: Mapping[str, object]) -> str:
    """Format a point for display.

    >>> format_grid_point({"objective.params.beta": 0.1, "train.lr": 0.01})
    'beta=0.1, lr=0.01'
    """
    return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items())
