"""Tables of methods by tasks, one per data set, with published results and paired tests."""

import json
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from scipy.special import stdtr

from ducats.report.figures.summary_stats import MeanStd
from ducats.report.method_results import method_names
from ducats.report.method_tables.published import PublishedResult, load_published_results
from ducats.report.provenance import collect_cautions, describe_evaluation
from ducats.report.run_kinds import Measure, RunKind
from ducats.report.run_reader import Run, find_runs
from ducats.report.tasks import data_and_task, task_name
from ducats.runfolder.records import finite_number
from ducats.utils.findings import pluralise

FULLY_SUPERVISED = "fully-supervised"  # upper bound with all labels; never marked as the best method
METHOD_ORDER = (  # row order of the paper's tables
    *("source-only", "edl", "edl-random", "edl-entropy", "mrkld", "seg-uncertainty", "tpld", "proda"),
    *("random", "margin", "least_confident", "entropy", "coreset", "waal", "badge", "aada", "dbal", "tqs"),
    *("clue", "eada", "aada-seg", "mada", "eada-seg"),
)
REPEATED_SEED_NOTE = "their mean counts as one seed"  # how several runs with the same seed are counted
TaskMeasure = tuple[str, str]  # task, key of the measure
TaskSeed = tuple[str, int]  # task, seed
_Key = TypeVar("_Key")  # task and seed


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired t-test."""

    difference: float  # mean difference, first method minus second
    p: float | None  # two-sided p-value; None if all differences are equal
    n_pairs: int


def paired_t_test(first: Mapping[_Key, float], second: Mapping[_Key, float]) -> PairedTest | None:
    """Compare two methods on their common keys; None with fewer than two pairs.

    >>> paired_t_test({0: 0.9, 1: 0.8, 2: 0.9}, {0: 0.8, 1: 0.6}).n_pairs
    2
    """
    differences = [value - second[key] for key, value in first.items() if key in second]
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    # Differences that are equal up to rounding errors have no spread.
    if deviation <= 1e-12:
        return PairedTest(mean, None, len(differences))
    t = mean / (deviation / math.sqrt(len(differences)))
    return PairedTest(mean, float(2 * stdtr(len(differences) - 1, -abs(t))), len(differences))


@dataclass(frozen=True)
class TaskTableRow:
    """Results of one method over tasks and seeds."""

    method: str
    # By task and measure; tasks without a run of the method are missing.
    values: Mapping[TaskMeasure, MeanStd]
    averages: Mapping[str, MeanStd]  # mean over the tasks, by measure; missing if a task is missing
    seeds: tuple[int, ...]  # all seeds of the method's runs
    labels: float  # labels spent, mean over the runs, like `seconds` and `memory`
    seconds: float
    memory: float | None  # peak memory in bytes; None if a run did not record it
    # Ranking measure by task and seed; runs with the same task and seed are averaged.
    scores: Mapping[TaskSeed, float]
    published: Mapping[str, PublishedResult]  # published results of the method, by measure
    unpublished_settings: tuple[str, ...]  # settings in which our runs differ from the published ones
    # Paired test on the same tasks and seeds, by name of the other method.
    paired_tests: Mapping[str, PairedTest | None]


@dataclass(frozen=True)
class TaskTable:
    """Table of methods by tasks of one data set."""

    data_name: str
    kind: RunKind
    measures: tuple[Measure, ...]  # the first one ranks the methods
    tasks: tuple[str, ...]  # one empty name if the data has no tasks
    # Methods in the order of the paper's tables, then others, then the fully supervised ones.
    rows: tuple[TaskTableRow, ...]
    runs: tuple[Run, ...]
    baselines: tuple[str, ...]  # the methods that all rows are compared with
    notes: tuple[str, ...]  # for the reader, printed below the table

    @property
    def columns(self) -> list[TaskMeasure]:
        """All pairs of task and measure, in order."""
        return [(task, measure.key) for task in self.tasks for measure in self.measures]

    def best_methods(self, values: Mapping[str, MeanStd]) -> set[str]:
        """Return the methods with the highest rounded mean in a column, without fully supervised ones."""
        means = {
            name: round(100 * value.mean, 1) for name, value in values.items() if FULLY_SUPERVISED not in name
        }
        return {name for name, mean in means.items() if len(means) > 1 and mean == max(means.values())}


def make_tables(paths: Sequence[Path], baselines: Sequence[str] = ("random", "duc")) -> list[TaskTable]:
    """Return a table for each data set among the runs at or below the paths, as in `build_tables`."""
    return build_tables(find_runs(paths), baselines, paths)


def build_tables(
    runs: Sequence[Run], baselines: Sequence[str], given_folders: Sequence[Path] = ()
) -> list[TaskTable]:
    """Return a table for each data set among the runs.

    Args:
        baselines: methods to compare all others with; ignored in tables that lack them.
        given_folders: folders given by the user; tuning trials count only in these.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((data_and_task(run.config)[0], run.kind.headline_metric), []).append(run)
    folders = {path.resolve() for path in given_folders}
    return [_build_table(data_name, group, baselines, folders) for (data_name, _), group in groups.items()]


def _build_table(
    data_name: str, runs: Sequence[Run], baselines: Sequence[str], given_folders: Collection[Path]
) -> TaskTable:
    counted_runs, left_out = select_counted_runs(runs, given_folders)
    tasks = tuple(dict.fromkeys(task_name(run) for run in counted_runs))
    kind = runs[0].kind
    keys = (kind.headline_metric, *(("mean_iou_star",) if kind.headline_metric == "mean_iou" else ()))
    measures = tuple(
        kind.measure(key)
        for key in keys
        if any(finite_number(run.stages[-1], key) is not None for run in counted_runs)
    )
    names = sorted(method_names(counted_runs), key=_sort_key)
    scores = {name: _scores_by_seed(counted_runs, name, kind.headline_metric) for name in names}
    present_baselines = tuple(name for name in baselines if name in names)
    rows = []
    for name in names:
        paired_tests = {
            other: paired_t_test(scores[name], scores[other]) for other in present_baselines if other != name
        }
        method_runs = [run for run in counted_runs if run.method == name]
        rows.append(_build_row(data_name, name, method_runs, tasks, measures, scores[name], paired_tests))
    notes = _notes(counted_runs, left_out, rows)
    return TaskTable(
        data_name, kind, measures, tasks, tuple(rows), tuple(counted_runs), present_baselines, tuple(notes)
    )


def _sort_key(method: str) -> tuple[bool, int, list[tuple[int, str]]]:
    """Return the sort key of a method; numbers in names sort as numbers: kappa-5 before kappa-10."""
    parts = re.split(r"(\d+)", method)
    position = METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER)
    return (
        FULLY_SUPERVISED in method,
        position,
        [(int(word) if word.isdecimal() else -1, word) for word in parts],
    )


def _build_row(
    data_name: str,
    method: str,
    runs: Sequence[Run],
    tasks: Sequence[str],
    measures: Sequence[Measure],
    scores: Mapping[TaskSeed, float],
    paired_tests: Mapping[str, PairedTest | None],
) -> TaskTableRow:
    values: dict[TaskMeasure, MeanStd] = {}
    averages: dict[str, MeanStd] = {}
    for measure in measures:
        scores_by_seed = _scores_by_seed(runs, method, measure.key)
        for task in tasks:
            if task_scores := [score for (run_task, _), score in scores_by_seed.items() if run_task == task]:
                values[task, measure.key] = MeanStd.from_values(task_scores)
        if mean := _task_average(scores_by_seed, tasks):
            averages[measure.key] = mean
    entries = {
        m.key: entry for m in measures if (entry := load_published_results().get((data_name, m.key, method)))
    }
    published_results = {key: entry for key, entry in entries.items() if entry.covers(tasks)}
    peak_memory = [
        max((finite_number(stage, "peak_memory_bytes") or 0.0 for stage in run.stages), default=0.0)
        for run in runs
    ]
    return TaskTableRow(
        method=method,
        values=values,
        averages=averages,
        seeds=tuple(sorted({run.seed for run in runs})),
        labels=fmean(run.stages[-1]["labels"] for run in runs),
        seconds=fmean(run.stages[-1]["seconds"] for run in runs),
        memory=fmean(peak_memory) if all(peak_memory) else None,
        scores=scores,
        published=published_results,
        unpublished_settings=tuple(
            dict.fromkeys(
                key for e in published_results.values() for run in runs for key in e.unpublished_settings(run)
            )
        ),
        paired_tests=paired_tests,
    )


def _scores_by_seed(runs: Sequence[Run], method: str, metric_key: str) -> dict[TaskSeed, float]:
    """Return the final values of a method by task and seed; runs with the same task and seed are averaged."""
    values_by_seed: dict[TaskSeed, list[float]] = {}
    for run in runs:
        value = finite_number(run.stages[-1], metric_key)
        if run.method == method and value is not None:
            values_by_seed.setdefault((task_name(run), run.seed), []).append(value)
    return {task_seed: fmean(values) for task_seed, values in values_by_seed.items()}


def _task_average(scores_by_seed: Mapping[TaskSeed, float], tasks: Sequence[str]) -> MeanStd | None:
    """Return mean over tasks and deviation over the seeds that ran all tasks; None if a task has no run."""
    scores_by_task = [
        [score for (run_task, _), score in scores_by_seed.items() if run_task == task] for task in tasks
    ]
    if not all(scores_by_task):
        return None
    seeds = {seed for _, seed in scores_by_seed}
    complete_seeds = [s for s in seeds if all((task, s) in scores_by_seed for task in tasks)]
    seed_averages = [fmean(scores_by_seed[task, seed] for task in tasks) for seed in sorted(complete_seeds)]
    deviation = MeanStd.from_values(seed_averages).std if seed_averages else None
    return MeanStd(fmean(fmean(scores) for scores in scores_by_task), deviation)


def _notes(counted_runs: Sequence[Run], left_out: Sequence[str], rows: Sequence[TaskTableRow]) -> list[str]:
    """Return the notes of a table, without duplicates."""
    notes = [describe_evaluation(counted_runs), *left_out]
    for task in dict.fromkeys(task_name(run) for run in counted_runs):
        task_runs = [run for run in counted_runs if task_name(run) == task]
        notes += collect_cautions(task_runs, repeated_seed_note=REPEATED_SEED_NOTE)
    notes += dict.fromkeys(f"Published: {e.origin}." for row in rows for e in row.published.values())
    methods_by_settings: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.unpublished_settings:
            methods_by_settings.setdefault(row.unpublished_settings, []).append(row.method)
    notes += [
        f"Settings unlike the published ones (†) in our runs of {', '.join(names)}: {', '.join(settings)}."
        for settings, names in methods_by_settings.items()
    ]
    return list(dict.fromkeys(note for note in notes if note))


def collect_cautions_by_task(runs: Sequence[Run]) -> list[str]:
    """Return warnings about means that are not comparable or not reliable, separately for each task."""
    data_tasks = dict.fromkeys(data_and_task(run.config) for run in runs)
    if len(data_tasks) < 2:
        return collect_cautions(runs) if runs else []
    groups = [[run for run in runs if data_and_task(run.config) == data_task] for data_task in data_tasks]
    return list(
        dict.fromkeys(caution for group in groups for caution in collect_cautions(group, REPEATED_SEED_NOTE))
    )


def select_counted_runs(runs: Sequence[Run], given_folders: Collection[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that count, and notes about those that do not.

    Args:
        runs: runs of one data set.
        given_folders: resolved paths of the folders given by the user; tuning trials count only in these.
    """
    trials = [run for run in runs if _is_trial(run, given_folders)]
    other_runs = [run for run in runs if not _is_trial(run, given_folders)]
    notes = []
    if tuning_folders := sorted({run.folder.resolve().parent.name for run in trials}):
        notes.append(
            f"Left out: {pluralise(len(trials), 'trial')} of `ducats tune` in {', '.join(tuning_folders)}; "
            "give that folder to include them."
        )
    if unfinished := [run.name for run in other_runs if not run.finished]:
        notes.append(f"Left out because unfinished: {', '.join(unfinished)}.")
    if without_result := [run.name for run in other_runs if run.finished and run.result is None]:
        notes.append(f"Left out because they have no result on a test set: {', '.join(without_result)}.")
    unique_runs: dict[str, Run] = {}
    duplicates = []
    for run in other_runs:
        if run.finished and run.result is not None:
            key = json.dumps([run.method, run.config, run.data], sort_keys=True, default=str)
            if unique_runs.setdefault(key, run) is not run:
                duplicates.append(run.name)
    if duplicates:
        notes.append(
            f"Counted once, the same run (config and data) in several folders: {', '.join(duplicates)}."
        )
    return list(unique_runs.values()), notes


def _is_trial(run: Run, given_folders: Collection[Path]) -> bool:
    """Whether a run is a tuning trial and its folder was not given by the user."""
    folder = run.folder.resolve()
    return (folder.parent / "tune.json").exists() and not {folder, folder.parent} & set(given_folders)
