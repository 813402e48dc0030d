"""Published results, and the settings a run needs to be comparable with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from ducats.report.figures.run_settings import find_setting
from ducats.report.figures.summary_stats import MeanStd
from ducats.report.run_reader import Run
from ducats.utils.yaml_text import load_yaml


@dataclass(frozen=True)
class PublishedResult:
    """Published results of one method on one data set."""

    origin: str  # citation of the source
    all_tasks: tuple[str, ...]  # names of all tasks
    tasks: Mapping[str, MeanStd]  # results by task as fractions; empty if only the average is known
    average: MeanStd | None  # mean over all tasks
    # Settings by dotted name, each with the values that make a run comparable.
    comparable_settings: Mapping[str, tuple[Any, ...]]

    def average_over(self, tasks: Sequence[str]) -> MeanStd | None:
        """Return the published average for all tasks, or the mean of the single results for a subset."""
        if set(tasks) == set(self.all_tasks):
            return self.average
        if tasks and set(tasks) <= set(self.tasks):
            return MeanStd(fmean(self.tasks[task].mean for task in tasks), None)
        return None

    def covers(self, tasks: Sequence[str]) -> bool:
        """Whether there is a result for one of these tasks or for their average."""
        return any(task in self.tasks for task in tasks) or self.average_over(tasks) is not None

    def unpublished_settings(self, run: Run) -> list[str]:
        """Return the settings in which a run differs from the published ones."""
        return [
            key
            for key, values in self.comparable_settings.items()
            if find_setting(run.config, key) not in values
        ]


@cache
def load_published_results() -> Mapping[tuple[str, str, str], PublishedResult]:
    """Load all published results, by data set, measure and method."""
    blocks = load_yaml(
        (resources.files("ducats.report") / "method_tables" / "published.yaml").read_text("utf-8")
    )
    results: dict[tuple[str, str, str], PublishedResult] = {}
    for block in blocks:
        for method, text in block["methods"].items():
            key = (block["data"], block.get("measure", "accuracy"), method)
            if key in results:
                raise ValueError(f"published.yaml has two entries for {key}")
            tasks, average = _parse_row(str(text), block["tasks"])
            comparable_settings = {name: tuple(values) for name, values in block["where"].items()}
            results[key] = PublishedResult(
                block["from"], tuple(block["tasks"]), tasks, average, comparable_settings
            )
    return results


def _parse_row(text: str, task_names: list[str]) -> tuple[dict[str, MeanStd], MeanStd | None]:
    """Parse a row: one result per task or none, and an average after the equals sign."""
    task_text, _, average = text.partition("=")
    values = [_parse_value(value_text) for value_text in task_text.split()]
    tasks = dict(zip(task_names, values, strict=True)) if values else {}
    if average.strip():
        return tasks, _parse_value(average)
    return tasks, values[0] if len(values) == 1 else None


def _parse_value(value_text: str) -> MeanStd:
    mean, _, deviation = value_text.partition("±")
    return MeanStd(float(mean) / 100, float(deviation) / 100 if deviation else None)
