"""Where runs belong: the data set and the task of each, and what a page calls them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ducats.figures.settings import without_folders
from ducats.report.read import Run

Column = tuple[str, str]  # a data set and a task
FOLDERS = {"folders": ("source", "target"), "map_folders": ("source", "target"), "manifest": ("path",)}


def column_of(config: Mapping[str, Any]) -> Column:
    """The data set and the task of a run: its benchmark's task, or what its folders are called.

    Args:
        config: the run's; one of the Python API names neither.
    """
    data = config.get("data")
    if not isinstance(data, Mapping):
        return "", ""
    name, knobs = str(data.get("name", "")).split(":")[-1], data.get("knobs")
    if not isinstance(knobs, Mapping):
        return name, ""
    if isinstance(knobs.get("task"), str):
        return name, knobs["task"]
    ends = [knobs.get(end) for end in FOLDERS.get(name, ())]
    return name, "-".join(Path(without_folders(end)).stem for end in ends if isinstance(end, str))


def task_of(run: Run) -> str:
    """The column that a run belongs to."""
    return column_of(run.config)[1]


def arrow(task: str) -> str:
    """A task as people read it; a name with several hyphens does not say which of them is the way.

    >>> arrow("Ar-Cl"), arrow("my-photos-web")
    ('Ar→Cl', 'my-photos-web')
    """
    return task.replace("-", "→") if task.count("-") == 1 else task


def columns_of(runs: Sequence[Run]) -> set[Column]:
    """All data sets and tasks among runs."""
    return {column_of(run.config) for run in runs}


def place_of(run: Run, columns: Collection[Column]) -> str:
    """What tells a run's task from those of the others; empty where all have the same.

    Args:
        run: that it is about.
        columns: of all runs on a page.
    """
    if len(columns) < 2:
        return ""
    data, task = column_of(run.config)
    several_sets = len({name for name, _ in columns}) > 1
    return " ".join(filter(None, (data, arrow(task)))) if several_sets or not task else arrow(task)
