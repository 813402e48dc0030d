"""Which runs a table counts, and what is said of the others."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from ducats.report.provenance import cautions
from ducats.report.read import Run
from ducats.report.tasks import column_of

ONE_SEED = "their mean counts, as one seed"  # what becomes of several runs of one seed


def cautions_by_task(runs: Sequence[Run]) -> list[str]:
    """What a reader should know before believing a mean, of each task by itself where there are several."""
    columns = dict.fromkeys(column_of(run.config) for run in runs)
    if len(columns) < 2:
        return cautions(runs) if runs else []
    apart = [[run for run in runs if column_of(run.config) == column] for column in columns]
    return list(dict.fromkeys(caution for group in apart for caution in cautions(group, ONE_SEED)))


def choose(runs: Sequence[Run], named: Collection[Path]) -> tuple[list[Run], list[str]]:
    """The runs that count, and sentences about those that do not.

    Args:
        runs: of one data set.
        named: folders that were asked for by name, resolved: trials of a search count only there.
    """
    trials = [run for run in runs if _is_trial(run, named)]
    rest = [run for run in runs if not _is_trial(run, named)]
    notes = []
    if searches := sorted({run.folder.resolve().parent.name for run in trials}):
        count = f"{len(trials)} trial{'s' if len(trials) > 1 else ''}"
        notes.append(
            f"Left out: {count} of `ducats tune` in {', '.join(searches)} (name the folder to see them)."
        )
    if unfinished := [run.name for run in rest if not run.finished]:
        notes.append(f"Not finished, so left out: {', '.join(unfinished)}.")
    if bare := [run.name for run in rest if run.finished and run.result is None]:
        notes.append(f"Without a result on a test set, so left out: {', '.join(bare)}.")
    counted: dict[str, Run] = {}
    copies = []
    for run in rest:
        if run.finished and run.result is not None:
            key = json.dumps([run.method, run.config, run.data], sort_keys=True, default=str)
            if counted.setdefault(key, run) is not run:
                copies.append(run.name)
    if copies:
        notes.append(f"The same run (config and data) in several folders, counted once: {', '.join(copies)}.")
    return list(counted.values()), notes


def _is_trial(run: Run, named: Collection[Path]) -> bool:
    """Whether a run was made by a search for settings, and nobody asked for just that."""
    folder = run.folder.resolve()
    return (folder.parent / "tune.json").exists() and not {folder, folder.parent} & set(named)
