"""Selection of the runs that count in a table, and notes about the others."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ducats.report.provenance import cautions
from ducats.report.read import Run
from ducats.report.tasks import column_of

ONE_SEED = "their mean counts as one seed"  # how several runs with the same seed are counted


def cautions_by_task(runs: Sequence[Run]) -> list[str]:
    """Return warnings about means that are not comparable or not reliable, separately for each task."""
    columns = dict.fromkeys(column_of(run.config) for run in runs)
    if len(columns) < 2:
        return cautions(runs) if runs else []
    apart = [[run for run in runs if column_of(run.config) == column] for column in columns]
    return list(dict.fromkeys(caution for group in apart for caution in cautions(group, ONE_SEED)))


def choose(runs: Sequence[Run], named: Collection[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that count, and notes about those that do not.

    Args:
        runs: runs of one data set.
        named: resolved paths of the folders given by the user; tuning trials count only in these.
    """
    trials = [run for run in runs if _is_trial(run, named)]
    rest = [run for run in runs if not _is_trial(run, named)]
    notes = []
    if searches := sorted({run.folder.resolve().parent.name for run in trials}):
        count = f"{len(trials)} trial{'s' if len(trials) > 1 else ''}"
        notes.append(
            f"Left out: {count} of `ducats tune` in {', '.join(searches)}; give that folder to include them."
        )
    if unfinished := [run.name for run in rest if not run.finished]:
        notes.append(f"Left out because unfinished: {', '.join(unfinished)}.")
    if bare := [run.name for run in rest if run.finished and run.result is None]:
        notes.append(f"Left out because there is no result on a test set: {', '.join(bare)}.")
    counted: dict[str, Run] = {}
    copies = []
    for run in rest:
        if run.finished and run.result is not None:
            key = json.dumps([run.method, run.config, run.data], sort_keys=True, default=str)
            if counted.setdefault(key, run) is not run:
                copies.append(run.name)
    if copies:
        notes.append(f"Counted once, the same run (config and data) in several folders: {', '.join(copies)}.")
    return list(counted.values()), notes


def _is_trial(run: Run, named: Collection[Path]) -> bool:
    """Whether a run is a tuning trial and its folder was not given by the user."""
    folder = run.folder.resolve()
    return (folder.parent / "tune.json").exists() and not {folder, folder.parent} & set(named)
