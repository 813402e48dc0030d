"""Data set and task of a run, and their names on a page."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.figures.settings import without_folders
from ducats.report.read import Run

Column = tuple[str, str]  # a data set and a task
FOLDERS = {
    "folders": ("source", "target"),
    "segmentation_folders": ("source", "target"),
    "manifest": ("path",),
}


def column_of(config: Mapping[str, Any]) -> Column:
    """Return data set and task of a run: the task of the benchmark, or the names of the folders.

    Both are empty for a run of the Python API.
    """
    data = config.get("data")
    if not isinstance(data, Mapping):
        return "", ""
    name, params = str(data.get("name", "")).split(":")[-1], data.get("params")
    if not isinstance(params, Mapping):
        return name, ""
    if isinstance(params.get("task"), str):
        return name, params["task"]
    ends = [params.get(end) for end in FOLDERS.get(name, ())]
    return name, "-".join(Path(without_folders(end)).stem for end in ends if isinstance(end, str))


def task_of(run: Run) -> str:
    """Return the task of a run; empty if its data has no tasks."""
    return column_of(run.config)[1]


def arrow(task: str) -> str:
    """Format a task name with an arrow if it has exactly one hyphen; more hyphens are ambiguous.

    >>> arrow("Ar-Cl"), arrow("my-photos-web")
    ('Ar→Cl', 'my-photos-web')
    """
    return task.replace("-", "→") if task.count("-") == 1 else task


def columns_of(runs: Sequence[Run]) -> set[Column]:
    """Return all pairs of data set and task among the runs."""
    return {column_of(run.config) for run in runs}


def place_of(run: Run, columns: Collection[Column]) -> str:
    """Return the shortest name that distinguishes a run's task on a page; empty if there is only one.

    Args:
        columns: pairs of data set and task of all runs on the page.
    """
    if len(columns) < 2:
        return ""
    data, task = column_of(run.config)
    several_sets = len({name for name, _ in columns}) > 1
    return " ".join(filter(None, (data, arrow(task)))) if several_sets or not task else arrow(task)
