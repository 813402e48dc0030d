"""Data set and task of a run, and their names on a page."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.report.figures.run_settings import strip_folders
from ducats.report.run_reader import Run

DataTask = tuple[str, str]  # a data set and a task
FOLDER_SETTINGS = {
    "folders": ("source", "target"),
    "segmentation_folders": ("source", "target"),
    "manifest": ("path",),
}
CUSTOM_FOLDER_SETTINGS = ("source", "target", "path")  # of a user's own data set, if it has them


def data_and_task(config: Mapping[str, Any]) -> DataTask:
    """Return data set and task of a run: the task of the benchmark, or the names of the folders.

    Both are empty for a run of the Python API.
    """
    data = config.get("data")
    if not isinstance(data, Mapping):
        return "", ""
    module, _, name = str(data.get("name", "")).rpartition(":")
    params = data.get("params")
    if not isinstance(params, Mapping):
        return name, ""
    if isinstance(params.get("task"), str):
        return name, params["task"]
    folder_settings = CUSTOM_FOLDER_SETTINGS if module else FOLDER_SETTINGS.get(name, ())
    paths = [params.get(key) for key in folder_settings]
    return name, "-".join(Path(strip_folders(path)).stem for path in paths if isinstance(path, str))


def task_name(run: Run) -> str:
    """Return the task of a run; empty if its data has no tasks."""
    return data_and_task(run.config)[1]


def format_task(task: str) -> str:
    """Format a task name with an arrow if it has exactly one hyphen; more hyphens are ambiguous.

    >>> format_task("Ar-Cl"), format_task("my-photos-web")
    ('Ar→Cl', 'my-photos-web')
    """
    return task.replace("-", "→") if task.count("-") == 1 else task


def collect_data_tasks(runs: Sequence[Run]) -> set[DataTask]:
    """Return all pairs of data set and task among the runs."""
    return {data_and_task(run.config) for run in runs}


def task_caption(run: Run, data_tasks: Collection[DataTask]) -> str:
    """Return the shortest name that distinguishes a run's task from the others; empty if it is alone."""
    if len(data_tasks) < 2:
        return ""
    data_name, task = data_and_task(run.config)
    has_one_data_set = len({name for name, _ in data_tasks}) == 1
    return format_task(task) if has_one_data_set and task else f"{data_name} {format_task(task)}".strip()
