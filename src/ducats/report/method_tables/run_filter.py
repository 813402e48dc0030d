"""Selection of the runs that count in a table, and notes about the others."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ducats.report.provenance import collect_cautions
from ducats.report.run_reader import Run
from ducats.report.tasks import data_and_task

REPEATED_SEED_NOTE = "their mean counts as one seed"  # how several runs with the same seed are counted


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
        count = f"{len(trials)} trial{'s' if len(trials) > 1 else ''}"
        notes.append(
            f"Left out: {count} of `ducats tune` in {', '.join(tuning_folders)}; give that folder to include "
            "them."
        )
    if unfinished := [run.name for run in other_runs if not run.finished]:
        notes.append(f"Left out because unfinished: {', '.join(unfinished)}.")
    if without_result := [run.name for run in other_runs if run.finished and run.result is None]:
        notes.append(f"Left out because there is no result on a test set: {', '.join(without_result)}.")
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
