"""Expand a sweep into runs and check their configs before the first one starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ducats.config import Config
from ducats.config.options import DataOptions, RunOptions, default_run_folder
from ducats.data.registry import resolve_dataset
from ducats.report.tasks import data_and_task
from ducats.run.factory import check_config, resolve_for_machine
from ducats.runfolder.run_folder import RunFolder
from ducats.sweep.schema import Sweep, SweepMethod, SweepTask, expand_grid
from ducats.utils.errors import UserError

# Settings that define a method.
_METHOD_SETTINGS = ("method", "query", "query.name", "objective", "objective.name")


@dataclass(frozen=True)
class SweepFilter:
    """Command-line options that select the runs of a sweep and override their settings."""

    data: DataOptions = field(default_factory=DataOptions)
    config: Sequence[str] = ()  # config files of all runs, on top of the sweep's base
    settings: Sequence[str] = ()  # ``key=value`` for all runs
    seeds: Sequence[int] | None = None
    methods: Sequence[str] | None = None  # names or patterns; None: all
    tasks: Sequence[str] | None = None  # likewise


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    method: str  # name in tables
    task: str  # name in the sweep
    config: Config = field(repr=False)
    name: str  # name of the run folder; ends in the digest of the config

    def folder(self, out: Path) -> Path:
        """Return the run folder."""
        return out / self.name

    def state(self, out: Path) -> str:
        """Return done, started or new, judged only by the files of the run."""
        run_folder = RunFolder(self.folder(out))
        if run_folder.finished:
            return "done"
        return "started" if run_folder.config_path.exists() else "new"


def expand_sweep(sweep: Sweep, sweep_filter: SweepFilter, device: str) -> list[SweepRun]:
    """Return the runs of a sweep, ordered by seed to complete a first comparison early.

    Args:
        device: cpu, cuda or mps; the precision and therefore the name of a run depend on it.
    """
    _check_common_settings("--set", sweep_filter.settings)
    _check_common_settings("the sweep's settings:", sweep.settings)
    for task_entry in sweep.tasks:
        _check_common_settings(f"the settings of task {task_entry.display_name!r}:", task_entry.settings)
    seeds = sweep.seeds if sweep_filter.seeds is None else sweep_filter.seeds
    for seed in seeds:
        if seed < 0:
            raise UserError(f"--seeds must be 0 or more, not {seed}")
    expanded = [method for entry in sweep.methods for method in expand_grid(sweep, entry)]
    methods = {str(method.name): method for method in expanded}
    if len(methods) < len(expanded):
        raise UserError("two methods of the sweep have the same name; give each a unique `name`")
    tasks = {task.display_name: task for task in sweep.tasks}
    if len(tasks) < len(sweep.tasks):
        raise UserError("two tasks of the sweep have the same name; give each a unique `name`")
    method_names = _select_names("method", list(methods), sweep_filter.methods)
    for method in method_names[:1]:  # the data of a task is the same for every method
        _check_distinct_columns(
            {
                t.display_name: _build_config(sweep, methods[method], t, sweep_filter, device)
                for t in sweep.tasks
            }
        )
    configs = [
        (method, task, _build_config(sweep, methods[method], tasks[task], sweep_filter, device))
        for task in _select_names("task", list(tasks), sweep_filter.tasks)
        for method in method_names
    ]
    runs = []
    for seed in dict.fromkeys(seeds):
        for method, task, config in configs:
            seeded = config.model_copy(update={"seed": seed})
            runs.append(SweepRun(method, task, seeded, default_run_folder(seeded).name))
    return runs


def _check_common_settings(origin: str, settings: Sequence[str]) -> None:
    """Raise if a common setting defines a method: all rows of the table would then be the same method."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in _METHOD_SETTINGS:
            raise UserError(
                f"{origin} {setting} would make all methods of the sweep the same; select methods with "
                f"--methods, or set {key} in a method of the sweep file"
            )


def _check_distinct_columns(tasks: Mapping[str, Config]) -> None:
    """Raise if two tasks share a column of the table, which would average them."""
    tasks_by_column: dict[tuple[str, str], str] = {}
    for task, config in tasks.items():
        column = data_and_task(config.model_dump(mode="json"))
        if column in tasks_by_column:
            raise UserError(
                f"the tasks {tasks_by_column[column]!r} and {task!r} would share one column of the table "
                f"({' '.join(filter(None, column))}); put them in two sweeps"
            )
        tasks_by_column[column] = task


def _select_names(kind: str, names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"the sweep has no {kind} {pattern!r}; available: {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _build_config(
    sweep: Sweep, method: SweepMethod, task: SweepTask, sweep_filter: SweepFilter, device: str
) -> Config:
    options = RunOptions(
        config=[*sweep.base, *sweep_filter.config, *task.config, *method.config],
        set=[
            *sweep.settings,
            *task.settings,
            *method.settings,
            *sweep_filter.settings,
            f"method={json.dumps(method.name)}",
        ],
        task=task.task,
        device=device,
        **vars(sweep_filter.data),
    )
    try:
        return resolve_for_machine(options.load())
    except UserError as error:
        raise UserError(
            f"{method.name}{f' on {task.display_name}' if task.display_name else ''}: {error}"
        ) from None


def check_sweep_runs(runs: Sequence[SweepRun]) -> None:
    """Raise if a run cannot start: unknown components or parameters, or missing folders."""
    checked: set[tuple[str, str]] = set()
    for run in runs:
        # A method has the same components on every task, and a task the same data for every method.
        if {("method", run.method), ("task", run.task)} <= checked:
            continue
        checked |= {("method", run.method), ("task", run.task)}
        try:
            _check_run(run.config)
        except UserError as error:
            raise UserError(f"{run.method}{f' on {run.task}' if run.task else ''}: {error}") from error


def _check_run(config: Config) -> None:
    check_config(config, runs_here=False)  # and finished runs need no weights
    resolve_dataset(config.data.name).require_params(config.data.name, config.data.params)
    options = {"path": "manifest"} | {name: name for name in ("root", "source", "target", "test", "classes")}
    for param, option in options.items():
        path = config.data.params.get(param)
        relative_to_root = param != "root" and "root" in config.data.params
        if isinstance(path, str) and not relative_to_root and not Path(path).exists():
            raise UserError(f"{path} does not exist: check --{option}")
