"""Expand a sweep into runs and check their configs before the first one starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ducats.config import Config
from ducats.data import DATASETS, require_params
from ducats.doctor.task import task_mismatches
from ducats.errors import UserError
from ducats.factory import check_components, with_resolved_precision
from ducats.report.across import column_of
from ducats.run_options import RunOptions, default_run_folder
from ducats.sweep.plan import Method, Sweep, Task, variants

METHOD = ("method", "query", "query.name", "objective", "objective.name")  # settings that define a method


@dataclass(frozen=True)
class Wanted:
    """Command-line options that select the runs of a sweep and override their settings.

    Args:
        root: folder of the benchmark.
        source: folder of the source, for data with separate folders.
        target: folder of the target, for data with separate folders.
        settings: ``key=value`` for all runs; they override those of the sweep.
        seeds: override those of the sweep; None means no override.
        methods: names or patterns; None means all.
        tasks: names or patterns; None means all.
    """

    root: Path | None = None
    source: Path | None = None
    target: Path | None = None
    settings: Sequence[str] = ()
    seeds: Sequence[int] | None = None
    methods: Sequence[str] | None = None
    tasks: Sequence[str] | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Args:
        method: name in tables.
        task: name in the sweep.
        name: name of the run folder; ends in the digest of the config.
    """

    method: str
    task: str
    config: Config = field(repr=False)
    name: str

    def folder(self, out: Path) -> Path:
        """Return the run folder."""
        return out / self.name

    def state(self, out: Path) -> str:
        """Return done, begun or new, judged only by the files of the run."""
        folder = self.folder(out)
        if (folder / "model.safetensors").exists():
            return "done"
        return "begun" if (folder / "config.yaml").exists() else "new"


def cells_of(sweep: Sweep, wanted: Wanted, device: str) -> list[Cell]:
    """Return the runs of a sweep, ordered by seed to complete a first comparison early.

    Args:
        device: cpu, cuda or mps; the precision and therefore the name of a run depend on it.
    """
    _refuse_methods("--set", wanted.settings)
    _refuse_methods("the sweep's settings:", sweep.settings)
    for each in sweep.tasks:
        _refuse_methods(f"the settings of task {each.called!r}:", each.settings)
    seeds = sweep.seeds if wanted.seeds is None else wanted.seeds
    for seed in seeds:
        if seed < 0:
            raise UserError(f"--seeds must be 0 or more, not {seed}")
    methods = {str(each.name): each for entry in sweep.methods for each in variants(entry)}
    if len(methods) < sum(1 for entry in sweep.methods for _ in variants(entry)):
        raise UserError("two methods of the sweep have the same name; give each a unique `name`")
    tasks = {task.called: task for task in sweep.tasks}
    if len(tasks) < len(sweep.tasks):
        raise UserError("two tasks of the sweep have the same name; give each a unique `name`")
    chosen = _chosen("method", list(methods), wanted.methods)
    for method in chosen[:1]:  # the data of a task is the same for every method
        _refuse_one_column(
            {t.called: _config(sweep, methods[method], t, wanted, device) for t in sweep.tasks}
        )
    pairs = [
        (method, task, _config(sweep, methods[method], tasks[task], wanted, device))
        for task in _chosen("task", list(tasks), wanted.tasks)
        for method in chosen
    ]
    cells = []
    for seed in dict.fromkeys(seeds):
        for method, task, config in pairs:
            seeded = config.model_copy(update={"seed": seed})
            cells.append(Cell(method, task, seeded, default_run_folder(seeded).name))
    return cells


def _refuse_methods(origin: str, settings: Sequence[str]) -> None:
    """Raise if a common setting defines a method: all rows of the table would then be the same method."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in METHOD:
            raise UserError(
                f"{origin} {setting} would make all methods of the sweep the same; select methods with "
                f"--methods, or set {key} in a method of the sweep file"
            )


def _refuse_one_column(tasks: Mapping[str, Config]) -> None:
    """Raise if two tasks share a column of the table, which would average them."""
    known: dict[tuple[str, str], str] = {}
    for task, config in tasks.items():
        column = column_of(config.model_dump(mode="json"))
        if column in known:
            raise UserError(
                f"the tasks {known[column]!r} and {task!r} would share one column of the table "
                f"({' '.join(filter(None, column))}); put them in two sweeps"
            )
        known[column] = task


def _chosen(kind: str, names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"the sweep has no {kind} {pattern!r}; available: {', '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _config(sweep: Sweep, method: Method, task: Task, wanted: Wanted, device: str) -> Config:
    given = RunOptions(
        config=[*sweep.base, *task.config, *method.config],
        set=[
            *sweep.settings,
            *task.settings,
            *method.settings,
            *wanted.settings,
            f"method={json.dumps(method.name)}",
        ],
        root=wanted.root,
        source=wanted.source,
        target=wanted.target,
        task=task.task,
        device=device,
    )
    try:
        return with_resolved_precision(given.load())
    except UserError as error:
        raise UserError(f"{method.name}{f' on {task.called}' if task.called else ''}: {error}") from None


def check(cells: Sequence[Cell]) -> None:
    """Raise if a run cannot start: unknown components or parameters, or missing folders."""
    seen: set[tuple[str, str]] = set()
    for cell in cells:
        # A method has the same components on every task, and a task the same data for every method.
        if {("method", cell.method), ("task", cell.task)} <= seen:
            continue
        seen |= {("method", cell.method), ("task", cell.task)}
        try:
            _check(cell.config)
        except UserError as error:
            raise UserError(f"{cell.method}{f' on {cell.task}' if cell.task else ''}: {error}") from error


def _check(config: Config) -> None:
    for misfit in task_mismatches(config):
        raise UserError(misfit)
    check_components(config)
    if config.data.name in DATASETS:
        require_params(config.data.name, DATASETS[config.data.name], config.data.params)
    for knob in ("root", "source", "target"):
        path = config.data.params.get(knob)
        relative_to_root = knob != "root" and "root" in config.data.params
        if isinstance(path, str) and not relative_to_root and not Path(path).exists():
            raise UserError(f"{path} does not exist: check --{knob}")
